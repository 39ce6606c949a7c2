#!/usr/bin/env bash
# Expected: AutoTokenizer tokenizes as the folder's tokenizer.json says, as with transformers 4.
# Found: if tokenizer_config.json names Qwen2Tokenizer, transformers 5.24 puts its own pre-tokenizer and normalizer in
#   the place of those of tokenizer.json, and says nothing; with the class PreTrainedTokenizerFast it keeps them.
# Matters: a tokenizer with another rule, such as digits in threes, that was saved under Qwen's class gives other tokens
#   in training with transformers than in tools that read tokenizer.json themselves; save_pretrained makes it permanent.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile transformers==5.24.0 tokenizers==0.23.3
"$folder/bin/python" - "$folder/saved" <<'END'
import json
import os
import sys
from pathlib import Path

os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
import tokenizers
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

saved = Path(sys.argv[1])
saved.mkdir()
tokenizer = Tokenizer(models.BPE())
tokenizer.normalizer = normalizers.NFKC()
words = Regex(r"\p{N}{1,3}|\s?\p{L}+|[^\s\p{L}\p{N}]+|\s+")
byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(words, "isolated"), byte_level])
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=300, initial_alphabet=byte_level.alphabet(), special_tokens=["<|endoftext|>"], show_progress=False
)
tokenizer.train_from_iterator(["in 2024 there were 123 of 999, \ufb01fty"] * 9, trainer)
tokenizer.save(str(saved / "tokenizer.json"))

print(f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}")
alike = []
for text in ("in 2024", "\ufb01fty"):
    tokens = {"tokenizer.json": tokenizer.encode(text).tokens}
    for name in ("PreTrainedTokenizerFast", "Qwen2Tokenizer"):
        (saved / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": name, "eos_token": "<|endoftext|>"})
        )
        tokens[name] = transformers.AutoTokenizer.from_pretrained(saved).tokenize(text)
        alike.append(tokens[name] == tokens["tokenizer.json"])
    for name, found in tokens.items():
        print(f"{text!a:12} {name:24} {ascii(found)}")
if alike != [True, False, True, False]:
    sys.exit("changed: Qwen2Tokenizer used to replace the rules of tokenizer.json, and PreTrainedTokenizerFast not")
END
