"""How the members of a job come to know each other, before an engine carries their tensors."""
