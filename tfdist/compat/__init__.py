"""The only package that touches private names of TensorFlow, Keras or Horovod: one file per subject.

Each file says which private names it uses, in which versions they were read, and why no public name does. Read in
TensorFlow 2.21.0 and Keras 3.15.1 unless a file says otherwise.
"""
