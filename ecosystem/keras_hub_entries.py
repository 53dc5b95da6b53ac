"""Models of keras-hub, from tiny configurations: language models, speech, pictures."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ecosystem import shared
from ecosystem.entry import Entry, Examples
from ecosystem.shared import CLASSES, LENGTH, SIDE, WORDS
from tfdist.verify.feature import keras

_MASKED, _FRAMES, _MELS = 3, 16, 8
_SIZES = {"vocabulary_size": WORDS, "num_layers": 2, "hidden_dim": 8, "intermediate_dim": 16}


def _models() -> Any:
    import keras_hub

    return keras_hub.models


def _gpt2() -> Any:
    backbone = _models().GPT2Backbone(**_SIZES, num_heads=2, dropout=0.0, max_sequence_length=LENGTH)
    return _models().GPT2CausalLM(backbone, preprocessor=None)


def _gemma_with_lora() -> Any:
    heads = {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    model = _models().GemmaCausalLM(_models().GemmaBackbone(**_SIZES, **heads), preprocessor=None)
    model.backbone.enable_lora(rank=2)
    return model


def _llama() -> Any:
    backbone = _models().LlamaBackbone(**_SIZES, num_query_heads=2, num_key_value_heads=1)
    return _models().LlamaCausalLM(backbone, preprocessor=None)


def _bert() -> Any:
    backbone = _models().BertBackbone(**_SIZES, num_heads=2, dropout=0.0, max_sequence_length=LENGTH)
    return _models().BertMaskedLM(backbone, preprocessor=None)


def _masked_words(random: np.random.Generator, rows: int) -> Examples:
    """Texts in which some words are to be guessed; how many differs, and the others weigh nothing."""
    words, mask = shared.texts(random, rows)
    positions = np.stack([random.permutation(LENGTH)[:_MASKED] for _ in range(rows)]).astype("int32")
    weights = np.take_along_axis(mask, positions, axis=1).astype("float32")
    inputs = {
        "token_ids": words,
        "segment_ids": (np.arange(LENGTH) >= LENGTH // 2).astype("int32") * mask,
        "padding_mask": mask,
        "mask_positions": positions,
    }
    return inputs, np.take_along_axis(words, positions, axis=1), weights


def _t5() -> Any:
    backbone = _models().T5Backbone(**_SIZES, num_heads=2, dropout=0.0)
    hidden = backbone(backbone.input)["decoder_sequence_output"]
    return keras.Model(backbone.input, backbone.token_embedding(hidden, reverse=True))


def _translations(random: np.random.Generator, rows: int) -> Examples:
    inputs, targets, weights = shared.next_words(random, rows)
    words, mask = shared.texts(random, rows)
    sides = {"encoder_token_ids": words, "encoder_padding_mask": mask}
    return {**sides, **{f"decoder_{name}": value for name, value in inputs.items()}}, targets, weights


def _whisper() -> Any:
    lengths = {"max_encoder_sequence_length": _FRAMES, "max_decoder_sequence_length": LENGTH}
    backbone = _models().WhisperBackbone(**_SIZES, num_heads=2, num_mels=_MELS, **lengths)
    hidden = backbone(backbone.input)["decoder_sequence_output"]
    return keras.Model(backbone.input, backbone.token_embedding(hidden, reverse=True))


def _speech(random: np.random.Generator, rows: int) -> Examples:
    inputs, targets, weights = shared.next_words(random, rows)
    sound = random.normal(size=(rows, _FRAMES, _MELS)).astype("float32")
    decoder = {f"decoder_{name}": value for name, value in inputs.items()}
    return {"encoder_features": sound, **decoder}, targets, weights


def _vit() -> Any:
    sizes = {"image_shape": (SIDE, SIDE, 3), "patch_size": 16, "num_layers": 2, "num_heads": 2}
    backbone = _models().ViTBackbone(**sizes, hidden_dim=8, mlp_dim=16)
    return _models().ViTImageClassifier(backbone, CLASSES)


def _resnet() -> Any:
    backbone = _models().ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64],
        stackwise_num_blocks=[1],
        stackwise_num_strides=[1],
        block_type="basic_block",
        image_shape=(SIDE, SIDE, 3),
    )
    return _models().ResNetImageClassifier(backbone, CLASSES)


def _segformer() -> Any:
    encoder = _models().MiTBackbone(
        layerwise_depths=[1, 1],
        image_shape=(SIDE, SIDE, 3),
        hidden_dims=[4, 8],
        num_layers=2,
        layerwise_num_heads=[1, 2],
        layerwise_sr_ratios=[4, 2],
        max_drop_path_rate=0.0,
        layerwise_patch_sizes=[7, 3],
        layerwise_strides=[4, 2],
    )
    backbone = _models().SegFormerBackbone(image_encoder=encoder, projection_filters=8)
    return _models().SegFormerImageSegmenter(backbone, CLASSES)


def _segments(random: np.random.Generator, rows: int) -> Examples:
    pictures, _, _ = shared.pictures(random, rows)
    return pictures, (np.abs(pictures.sum(axis=-1)).astype("int32")) % CLASSES, None


def _entry(
    name: str,
    summary: str,
    make: Callable[[], Any],
    examples: Callable[[np.random.Generator, int], Examples],
    *,
    optimizer: Callable[[], Any] = shared.sgd,
    ways: tuple[str, ...] = ("float32",),
) -> Entry:
    return Entry(
        name=name,
        package="keras-hub",
        summary=summary,
        make=make,
        examples=examples,
        loss=shared.logits,
        optimizer=optimizer,
        options=shared.accuracy if examples in (shared.pictures, _segments) else shared.weighted_accuracy,
        ways=ways,
    )


ENTRIES = (
    _entry(
        "GPT2CausalLM",
        "a language model with tied embeddings",
        _gpt2,
        shared.next_words,
        ways=("float32", "xla", "mixed_float16", "compressed"),
    ),
    _entry("GemmaCausalLM", "fine-tuned by LoRA", _gemma_with_lora, shared.next_words, optimizer=shared.adamw),
    _entry("LlamaCausalLM", "rotary positions, grouped queries", _llama, shared.next_words, optimizer=shared.adamw),
    _entry("BertMaskedLM", "words guessed at given places", _bert, _masked_words),
    _entry("T5", "an encoder and a decoder", _t5, _translations),
    _entry("Whisper", "speech to text", _whisper, _speech),
    _entry("ViTImageClassifier", "patches of pictures", _vit, shared.pictures, ways=("float64",)),
    _entry("ResNetImageClassifier", "with batch normalization", _resnet, shared.pictures, ways=("float64",)),
    _entry("SegFormerImageSegmenter", "a class for each pixel", _segformer, _segments, ways=("float64",)),
)
