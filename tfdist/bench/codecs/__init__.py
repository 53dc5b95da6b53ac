"""Gradient compression: the bytes, cost, error and gain of each codec, compared with Horovod and no compression."""
