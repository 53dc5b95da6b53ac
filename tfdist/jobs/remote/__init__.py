"""Jobs on several hosts: a process on each host starts the workers there, and reports over one connection."""
