"""How layers and losses compute where their weights lie: with parts, and with activations in parts."""
