"""Make a tiny language model with random weights: tokenizer, chat template, Llama in miniature.

Run when the image is built, so that nothing is fetched when a training run starts:

    python -m tandem_trainer.tiny_model OUTPUT_FOLDER [SEED]

Two numbers are not free. The attention head must be a multiple of 32 wide: with 16, vLLM on
CPU starts, calls itself healthy and dies at the first request. Files are made readable for
everybody, because transformers writes mode 600 and pods run as another user.
"""

from __future__ import annotations

import sys
from pathlib import Path

HIDDEN = 128
HEADS = 4
LAYERS = 2
MAX_TOKENS = 2048
END, PAD = "<|im_end|>", "<|pad|>"
SPECIAL = ["<|endoftext|>", "<|im_start|>", END, PAD]

#: What the tokenizer learns its few merges from.
CORPUS = (
    "hello world, this is a tiny tokenizer",
    "user assistant system tool",
    "what is the weather in Paris today?",
    "The quick brown fox jumps over the lazy dog 0123456789",
    '{"name": "get_weather", "arguments": {"city": "Paris"}}',
)

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'] if m['content'] is string"
    " else (m['content'] | map(attribute='text') | join('')) }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(output: Path, seed: int = 0) -> int:
    """Write model and tokenizer to a folder and return the number of parameters."""
    import torch  # noqa: PLC0415 - the numeric libraries exist in the image only
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # Every line twice: a merge needs a pair that occurs more than once.
    tokenizer.train_from_iterator(
        CORPUS * 2,
        trainers.BpeTrainer(
            vocab_size=512,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, model_max_length=MAX_TOKENS
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(output)

    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            # No id without a token: every sampled id can be decoded.
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 2,
            max_position_embeddings=MAX_TOKENS,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=tokenizer.token_to_id(END),
            pad_token_id=tokenizer.token_to_id(PAD),
        )
    )
    model.save_pretrained(output)
    output.chmod(0o755)
    for file in output.iterdir():
        file.chmod(0o644)
    return int(model.num_parameters())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    parameters = build(folder, *(int(seed) for seed in sys.argv[2:3]))
    sys.stdout.write(f"tiny model in {folder}: {parameters} parameters\n")
