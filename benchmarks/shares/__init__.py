"""Workers of unlike speed: equal shares, the ideal ones, and shares that follow the speed."""
