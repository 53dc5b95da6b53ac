#!/usr/bin/env bash
# Finding: a new lookup layer takes the words that its vocabulary file had earlier in the process, not those it has.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: TensorFlow names a table that is read from a file by its path, and a second table of this name is the first
# one. It is never filled again, even if the first layer was deleted. So a notebook that writes vocab.txt for another
# fold, or for more words, and builds a new StringLookup, IntegerLookup or TextVectorization, goes on with the old
# words. `get_vocabulary` and `vocabulary_size` show the old ones too. With `invert=True`, and after a restart, the
# layer has the new words, so words turn into others on the way back. Another path, or `vocabulary=lines`, is right.
# Output seen: the file has cat, dog; the first layer gives cat 1, dog 2, eel 0
# the file has dog, eel, cat; a new layer gives cat 1, dog 2, eel 0, and its words are cat, dog
# cat, dog there and back are dog, eel; from a list of the same words cat 3, dog 1, eel 2
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import gc
from pathlib import Path

import keras
import tensorflow as tf

FILE = Path("vocab.txt")
WORDS = ["cat", "dog", "eel"]


def write(*words):
    FILE.write_text("\n".join(words) + "\n")
    print(f"the file has {', '.join(words)}; ", end="")


def ids(layer):
    return layer(tf.constant(WORDS)).numpy().tolist()


def shown(numbers):
    return ", ".join(f"{word} {number}" for word, number in zip(WORDS, numbers, strict=True))


write("cat", "dog")
layer = keras.layers.StringLookup(vocabulary=str(FILE))
before = ids(layer)
print(f"the first layer gives {shown(before)}")
del layer
gc.collect()

write("dog", "eel", "cat")
layer = keras.layers.StringLookup(vocabulary=str(FILE))
words = [str(word) for word in layer.get_vocabulary()[1:]]
after = ids(layer)
print(f"a new layer gives {shown(after)}, and its words are {', '.join(words)}")

inverse = keras.layers.StringLookup(vocabulary=str(FILE), invert=True)
back = [word.decode() for word in inverse(layer(tf.constant(WORDS[:2]))).numpy()]
right = ids(keras.layers.StringLookup(vocabulary=FILE.read_text().split()))
print(f"{', '.join(WORDS[:2])} there and back are {', '.join(back)}; ", end="")
print(f"from a list of the same words {shown(right)}")
assert before == after == [1, 2, 0] and words == ["cat", "dog"], "the behaviour has changed"
assert back == ["dog", "eel"] and right == [3, 1, 2], "the behaviour has changed"
PROGRAM
