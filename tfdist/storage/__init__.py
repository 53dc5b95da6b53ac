"""Files in directories, local or in any store that fsspec reaches: made whole or not at all."""
