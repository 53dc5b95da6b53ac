"""Search the digits classifier's hyper-parameters over all cores, or train its defaults.

python strategies/search/train.py                                                     # the defaults
tfdist search --metric val_accuracy --trials 40 strategies/search/train.py            # ASHA, in the declared space
tfdist search --metric val_accuracy --scheduler population --trials 8 --min-epochs 3 strategies/search/train.py
"""

import keras

import tfdist
from tfdist.testing import digits

EPOCHS = 27  # epochs of a trial that is never stopped: the default of tfdist search --epochs


def build(hp: tfdist.search.HyperParameters) -> keras.Model:
    layers = [
        layer
        for filters in (32, 64)
        for layer in (
            keras.layers.Conv2D(
                filters, 3, padding="same", activation=hp.Choice("activation", ["relu", "gelu", "tanh"])
            ),
            keras.layers.MaxPooling2D(),
        )
    ]
    head = [keras.layers.Flatten(), keras.layers.Dense(hp.Choice("units", [32, 64, 128]), activation="relu")]
    drop = keras.layers.Dropout(hp.Float("dropout", 0.0, 0.5, default=0.25))
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, *head, drop, keras.layers.Dense(10)])
    optimizer = keras.optimizers.AdamW(
        hp.Float("learning_rate", 1e-4, 1e-1, sampling="log", default=1e-3),
        weight_decay=hp.Float("weight_decay", 1e-5, 1e-1, sampling="log", default=4e-3),
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def main() -> None:
    keras.utils.set_random_seed(digits.SEED)
    data = digits.load_digits()
    model = build(tfdist.search.parameters())
    model.fit(
        data.train_images,
        data.train_labels,
        batch_size=64,
        epochs=EPOCHS,
        validation_data=(data.validation_images, data.validation_labels),
        callbacks=tfdist.search.callbacks(),
        verbose=2,
    )
    # only for a trial that has trained all epochs: the others end in fit
    accuracy = model.evaluate(data.test_images, data.test_labels, verbose=0)[1]
    print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
