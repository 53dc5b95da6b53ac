"""What native parts are built for."""
