"""Workers of different speeds: equal shares, ideal shares, and shares that follow the speed."""
