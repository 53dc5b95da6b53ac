"""Files in directories, local or in any store that fsspec reaches, which appear whole or not at all."""
