"""Gradient compression: what each codec sends, costs, loses and gains, beside Horovod and beside no compression."""
