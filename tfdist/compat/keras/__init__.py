"""What of Keras is private: its trainer, and what it calls in a step."""
