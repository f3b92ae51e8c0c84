"""Tokens of a tokenizer.json, ours beside those of Hugging Face's library; skipped without it.

    tokens.py LIBHTRANSFORMER_MODELS

Tokenizers of the forms that are in use are trained here on the manual: byte-level with the
expressions of GPT-2 and Llama 3, and U+2581 for a space as in Llama 2, with and without splitting.
"""
import ctypes as c
import json
import pathlib
import random
import sys
import tempfile

try:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
except ImportError:
    print("skipped: no tokenizers here (scripts/python.sh)")
    sys.exit(77)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
ODD = ["h\u00e9llo w\u00f6rld  \n\n\t x", "\u65e5\u672c\u8a9e 12345 67",
       "it's I'M don't\r\n\r\n  end ", "   leading", "trail   ", "a\u00a0b\u2003c",
       "\U0001f600\U0001f600 ok", "x" * 3000, "e\u0301a", " ", "\n", " 's", ""]


class Desc(c.Structure):
    _fields_ = [("size", c.c_size_t), ("device", c.c_char_p), ("pad", c.c_char * 256)]


def byte_level(**options):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **options)


def kinds(text):
    """(name, tokenizer.json)"""
    letters = pre_tokenizers.ByteLevel.alphabet()
    for name, split, model in [
            ("gpt2", byte_level(), models.BPE()),
            ("llama3", pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                                byte_level(use_regex=False)]),
             models.BPE(ignore_merges=True)),
            ("digits", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                byte_level()]), models.BPE())]:
        t = Tokenizer(model)
        t.pre_tokenizer = split
        t.train_from_iterator(text.split("\n"), trainers.BpeTrainer(
            vocab_size=1000, special_tokens=["<|end|>"], initial_alphabet=letters,
            show_progress=False))
        yield name, t.to_str()
    t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    names = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    t.train_from_iterator(text.split("\n"), trainers.BpeTrainer(
        vocab_size=1000, special_tokens=names, show_progress=False))
    made = json.loads(t.to_str())
    made["added_tokens"] = made["added_tokens"][:3]
    yield "llama2", json.dumps(made)
    made["pre_tokenizer"] = None
    yield "llama2 unsplit", json.dumps(made)


class Ours:
    def __init__(self, library, path):
        self.lib = library
        self.ctx, self.it = c.c_void_p(), c.c_void_p()
        self.lib.ht_context_error.restype = c.c_char_p
        desc = Desc(size=16, device=b"cpu")
        self.must(self.lib.ht_context_create(c.byref(self.ctx), c.byref(desc)))
        self.must(self.lib.ht_tokenizer_open(c.byref(self.it), self.ctx, path.encode()))

    def must(self, status):
        if status:
            sys.exit(self.lib.ht_context_error(self.ctx).decode())

    def encode(self, text):
        data = text.encode()
        ids, count = (c.c_int32 * (len(data) + 1))(), c.c_int64()
        self.must(self.lib.ht_tokenizer_encode(self.it, data, c.c_size_t(len(data)), ids,
                                               c.c_int64(len(data)), c.byref(count)))
        return [i - 1 for i in ids[:count.value]]


def main():
    library = c.CDLL(sys.argv[1])
    text = "\n".join(p.read_text() for p in sorted(
        (pathlib.Path(__file__).resolve().parents[2] / "docs").glob("*.md")))
    text = text.replace("\u2581", "_")
    draw = random.Random(1)
    pieces = []
    for at in (draw.randrange(len(text)) for _ in range(60)):
        pieces.append(text[at:at + draw.randint(1, 400)])
    for name, made in kinds(text):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(made)
            file.flush()
            ours, theirs = Ours(library, file.name), Tokenizer.from_file(file.name)
        for piece in ODD + pieces + [text]:
            want = theirs.encode(piece, add_special_tokens=False).ids
            if ours.encode(piece) != want:
                sys.exit("%s: other tokens for %r" % (name, piece[:80]))
    print("tokens: the same as Hugging Face's, in 5 forms")


main()
