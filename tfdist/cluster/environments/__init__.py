"""What each launcher tells a process of its cluster by variables: a file for each, and how the variables are read."""
