"""Secure aggregation: a server learns the sum of many clients' vectors and no single one; pure, without a socket."""
