"""Writes a complete model that any vLLM can load, in about a second and without a download.

    python make_model.py DIRECTORY

The directory gets a config, a tokenizer, a chat template and generation
settings. It gets no weights: serve it with --load-format dummy. The same
versions of Python and `tokenizers` write the same bytes every time, so the
hash of the files can stand in a plan.

Needed: the `tokenizers` library, which every vLLM installation has.
"""

import json
import pathlib
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def training_text():
    """Yields lines of made-up words: the same ones on every machine.

    A linear congruential generator stands in for `random`, whose methods may
    draw differently in another version of Python.
    """
    state = 20480

    def draw(n):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % n

    onsets = [""] + "b c d f g h j k l m n p r s t v w z br ch cl dr fl gr pl pr sh sl st th tr".split()
    vowels = "a e i o u ai ea ee oo ou".split()
    codas = ["", "", "", "l", "m", "n", "r", "s", "t", "nd", "ng", "rk", "st"]

    def word():
        return "".join(
            onsets[draw(len(onsets))] + vowels[draw(len(vowels))] + codas[draw(len(codas))]
            for _ in range(1 + draw(3))
        )

    words = [word() for _ in range(3000)]
    for _ in range(4000):
        # The smaller of two draws makes some words common and most rare, as in a language.
        line = [words[min(draw(len(words)), draw(len(words)))] for _ in range(12)]
        yield " ".join(line).capitalize() + f", {draw(10000)}.\n"


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        training_text(),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            special_tokens=[AddedToken(t, normalized=False, special=True) for t in SPECIAL],
        ),
    )
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"make_model: {tokenizer.get_vocab_size()} entries instead of {VOCABULARY}")
    return tokenizer


def main(directory):
    folder = pathlib.Path(directory)
    folder.mkdir(parents=True, exist_ok=True)

    def write(name, value):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

    tokenizer = make_tokenizer()
    end, start = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    tokenizer.save(str(folder / "tokenizer.json"))
    write("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 32768,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    })
    write("generation_config.json", {
        "do_sample": False,
        "bos_token_id": start,
        "eos_token_id": end,
        "pad_token_id": start,
    })
    write("config.json", {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": start,
        "eos_token_id": end,
    })


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: make_model.py DIRECTORY")
    main(sys.argv[1])
