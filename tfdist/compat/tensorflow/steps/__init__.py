"""The arguments and services of steps of user code, and the analysis of such steps."""
