"""What runs in the processes of a job, and what a job holds on its host: each file is small and stands alone."""
