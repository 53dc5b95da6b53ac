"""Measurements that took turns: ratios and quartiles, the machine, sizes in bytes, pictures."""
