"""Makes the seeds of the fuzz targets anew, after a format has changed:

    python3 tests/fuzz/seeds.py build/htransformer

The first of each folder, by name, is one that its reader takes; what begins with found- is an input
that a fuzzer found, and stays. SentencePiece's model is made here byte by byte: it stays small.
"""
import gzip
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

HERE = pathlib.Path(__file__).resolve().parent / "seeds"
PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
TRAIN = ("--task classify --format listops --attention hierarchical --query fine --block 2 "
         "--layers 1 --width 4 --heads 1 --hidden 4 --vocab 24 --classes 10 --length 16 "
         "--pool last --sinusoidal 0 --rotary all --relative_bias 1 --causal 1 --dropout 0 "
         "--batch 2 "
         "--optimizer adamw --train_items 4 --valid_items 2 --listops_min 4 --listops_max 16 "
         "--steps 1 --threads 1 --quiet")


def put(name, **files):
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if not old.name.startswith("found-"):
            old.unlink()
    for file, data in files.items():
        (folder / file).write_bytes(data if isinstance(data, bytes) else data.encode())


def run(words, folder):
    subprocess.run([PROGRAM] + words.split(), cwd=folder, check=True, stdin=subprocess.DEVNULL)


# ---- models ----

def split(data):
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + length]), data[8 + length:]


def open_form(data, keep=lambda name: True):
    """Without checksums and without the header's length, as the targets make a file of it."""
    header, body = split(data)
    header["__metadata__"].pop("crc32", None)
    at, numbers, out = 0, b"", {"__metadata__": header.pop("__metadata__")}
    for name, t in header.items():
        if not keep(name):
            continue
        begin, end = t["data_offsets"]
        out[name] = dict(t, data_offsets=[at, at + end - begin])
        numbers += body[begin:end]
        at += end - begin
    return b"J" + json.dumps(out, separators=(",", ":")).encode() + b"\f" + numbers


def linear(top):
    """Of two classes, and of three."""
    seeds = {}
    for name, classes in (("a_two", 2), ("three", 3)):
        lines = ["%d\t%s words" % (i % classes, "no good bad".split()[i % classes])
                 for i in range(6)]
        (top / "rows.tsv").write_text("\n".join(lines) + "\n")
        run("train --run %s --data rows.tsv --valid rows.tsv --layers 1 --width 4 --heads 1 "
            "--hidden 4 --length 8 --block 2 --batch 2 --steps 1 --threads 1 --quiet" % name, top)
        seeds[name] = open_form((top / name / "linear.safetensors").read_bytes())
    put("linear", **seeds)


def models(top):
    run("train --run run " + TRAIN, top)
    best = (top / "run/best.safetensors").read_bytes()
    step = (top / "run/step-000000001.safetensors").read_bytes()
    run("export run --to bf16.safetensors --dtype bf16", top)
    bf16 = (top / "bf16.safetensors").read_bytes()
    few = open_form(best, lambda name: name.startswith(("norm", "output")))
    two = json.dumps({"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]},
                      "norm.weight": {"dtype": "F64", "shape": [4], "data_offsets": [4, 36]}})
    put("safetensors", a_open=few, whole=best, others=b"J" + two.encode() + b"\f" + bytes(36))
    put("checkpoint", a_open=open_form(best), bf16=open_form(bf16), whole=best)
    at = step.index(b'\\"step\\":1') - 8 + 1  # where edits count from: the header's text
    linear(top)
    put("resume", a_own=b"", step=struct.pack("<HBB", at + 9, 1, 5) + b"1e300",
        weight=struct.pack("<HBB", len(step) - 16, 4, 4) + b"\0\0\xc0\x7f",
        twice=struct.pack("<HBB", at, 0, 8) + b'\\"step\\"' + struct.pack("<HBB", 1, 0, 1) + b"[")
    config = (top / "run/config.json").read_text()
    log = (top / "run/log.jsonl").read_text()
    put("config", a_whole=config, few='{"width": 8, "heads": 2, "attention": "full"}',
        wrong='{"width": "8", "task": 7, "causal": true, "rate": 1e999}')
    more = '{"step": 2, "loss": 0.5, "accuracy": 1, "rate": 1e-3, "ms": 2.5, "tokens_per_s": 9e4}\n'
    put("log", a_run=config + "\f" + log + more,
        again=config + "\f" + log + more + log + '{"step": 2, "valid_loss": null}\n{"st',
        language='{"task": "language"}\f{"step": 1, "loss": 7}\n'
                 '{"step": 1, "valid_loss": 6, "valid_accuracy": 0.1}\n')


# ---- states: changes of what the target saves itself ----

def states():
    put("state", a_near=b"\2", b_full=b"\3", opened=b"\6", changed=b"\2\x34\4\7\x28\0\1",
        cut=b"\2\x09", unsealed=b"\0\x10\x10\1")
    put("cache", a_near=b"\x08", b_full=b"\x09", first=b"\x0a", local=b"\x0b", opened=b"\x0c",
        turned=b"\x0d", changed=b"\x08\x10\0\1", cut=b"\x08\x08",
        unsealed=b"\0\x10\x10\1")


# ---- rows, texts, images ----

def rows():
    put("tsv", a_plain=b"\0ham\tgood words\nspam\tbad words\nham\tmore\n",
        header=b"\0label\ttext\nx\tone\ny\ttwo\nx\tthree\n", pairs=b"\4x\ta\tb\ny\tc\td\n",
        five=b"\0041\tp\tq\tone\ttwo\n0\tp\tr\tone\tthree\n", bad=b"\x10a\tb\nno tab\n\tx\n\0\t\n")
    put("csv", a_header=b"\0label,text\nham,good words\nspam,\"bad, \"\"very\"\"\nbad\"\n",
        semicolon=b"\0text;stars\none;1\ntwo;5\n", columns=b"\x20a,b,c\n1,2,3\n4,5,6\n",
        open=b"\x10label,text\nx,\"never closed\ny,z\n", auto=b"\x80a|b\nc|d\ne|f\n")
    put("jsonl", a_plain='\0{"label": "ham", "text": "a\\u00e9\\n"}\n{"label": 2, "text": "b"}\n',
        pairs='\4{"text1": "a", "text2": "b", "label": true}\n',
        bad='\x10{"label": 1, "text": [1, {"x": null}]}\n'
            '{"text": "\\ud800", "label": 1.5}\n{\n',
        auto='\x80{"sentence": "s", "rating": 5, "more": {"a": [1, 2]}}\n')
    put("folders", a_three="\0good words\fmore good\fbad words", held="\1one\ftwo\fthree")
    put("labelled", a_rows="\0ham\tgood words\nspam\tbad words\n", pairs="\1x\ta\tb\ny\tc\td\n",
        papers="\x111\tp\tq\n0\tq\tr\n\fp\tone\nq\ttwo\nr\tthree\n",
        held="\2a\tb\nc\td\na\te\nc\tf\n")
    text = "the cat sat on the mat. " * 4
    put("text", a_file="\0" + text, lines="\x41" + text + "\nmore\n\nlast", held="\2" + text * 3,
        articles=b"\x80{\"text\": \"one\"}\n{\"text\": \"two\"}\n",
        wikitext=b"\xc0 = One = \n\n words \n\n = Two = \n words\n")
    put("fasta", a_two="\0>one\nACGT\nACGT\n>two\nTTTT\n",
        more="\1>a b c\nACGTN-*\n;x\nacgt\n\n>\n>b\nA")
    table = b"ham\tgood words\nspam\tbad words\n"
    item = struct.pack("<5H5i", 0, 7, 9, 7, 9, 0, 0, 0, 0, 2)
    header = struct.pack("<8s4IQ", b"httokens", 1, 10, 5, 0, 2)
    put("tokens", a_two=b"\0" + header + item * 2, held=b"\1" + header + item * 2,
        unplaced=b"\0" + struct.pack("<8s4IQ", b"httokens", 1, 100, 2, 0, 1) +
        struct.pack("<2H2i", 0, 99, 0, -1), none=b"\0" + header)
    put("grams", a_text="Good words, bad words! are they?", crowded="a!b!c!d!e!f!g!h!i!j!k!l!",
        bytes=bytes(range(128, 192)) + b" \xC3\xA9 1 2 3 ?!?!")
    packed = gzip.compress(table, mtime=0)
    put("gzip", a_rows=packed, twice=packed + packed, stored=gzip.compress(table, 0, mtime=0),
        long=gzip.compress(table * 200, mtime=0))
    put("listops", a_rows=b"\0003\t[MAX 1 2 3 ]\n9\t[MIN [MED 9 9 9 ] 9 ]\n",
        one=b"\1[SM 1 [MAX 2 3 ] ]", paren=b"\0006\t( ( ( [MAX 6 ) 1 ) ] )\n",
        held=b"\0021\t[MIN 1 2 ]\n2\t[MAX 1 2 ]\n3\t[MAX 3 2 ]\n",
        official=b"\4Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n\f( ( [SM 5 ) ] )\t5\n\f" +
        b"Source\tTarget\n( ( [MIN 4 ) ] )\t4\n")


def pack_zstd(top):
    (top / "table.tsv").write_bytes(b"ham\tgood words\nspam\tbad words\n")
    for level, name in ((1, "a"), (19, "b")):
        subprocess.run(["zstd", "-q", "-f", "-%d" % level, "table.tsv", "-o", name + ".zst"],
                       cwd=top, check=True)
    one = (top / "a.zst").read_bytes()
    put("zstd", a_rows=one, b_slow=(top / "b.zst").read_bytes(), twice=one + one,
        skip=one + b"\x50\x2A\x4D\x18\x04\0\0\0skip")


def images():
    header = b"htimages" + struct.pack("<4IQ", 1, 4, 4, 3, 2)
    records = b"".join(bytes([i]) + bytes(range(16)) for i in range(2))
    put("images", a_header=b"\0" + header + records, plain=b"\0" + records,
        squares=b"\1" + header + records, colour=b"\x10" + b"\1" + bytes(3072),
        shrunk=b"\2htimages" + struct.pack("<4IQ", 1, 8, 8, 3, 1) + b"\2" + bytes(range(64)))
    put("cifar", a_grey=bytes(1025) + b"\7" + bytes(1024),
        colour=b"\3" + bytes(3072) + b"\2" + bytes(3072))
    pairs = "1\tp\tq\n0\tq\tr\n"
    put("aan", a_papers="\0p\tone\nq\ttwo\nr\tthree\n\f" + "\f".join([pairs] * 3),
        official="\1\f" + "\f".join(["1.0\tp\tq\tone\ttwo\n0.0\tq\tr\ttwo\tthree\n"] * 3))
    put("imdb", a_four="bad film\fgood film\f worse \n\fbetter\tfilm\n")
    put("imdb_lines", a_two="0\tbad film\n1\tgood film\n\f1\tbetter\n0\tworse\n")


def png(width, height, depth, colour, lines):
    def chunk(kind, data):
        return (struct.pack(">I", len(data)) + kind + data +
                struct.pack(">I", zlib.crc32(kind + data)))

    about = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", about) + chunk(b"IDAT", zlib.compress(lines)) +
            chunk(b"IEND", b""))


def pictures():
    line = b"imgs/1 a.png 0 1 0 0\n\f"
    put("png", a_grey=line + png(32, 32, 8, 0, (b"\0" + bytes(range(32))) * 32),
        empty=line, colour=line + png(32, 32, 8, 2, (b"\0" + bytes(96)) * 32),
        small=line + png(8, 8, 1, 0, b"\0\xFF" * 8), outside=b"../x a.png 0 1\n\f",
        palette=line + png(32, 32, 8, 3, (b"\1" + bytes(32)) * 32))


def sentencepiece():
    """Pieces: <unk>, 256 bytes, some letters; identity, no prefix. Fields as in the .proto."""
    def varint(n):
        out = b""
        while n > 127:
            out += bytes([n & 127 | 128])
            n >>= 7
        return out + bytes([n])

    def field(number, data):
        return varint(number << 3 | 2) + varint(len(data)) + data

    def piece(text, score, kind):
        return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" +
                     bytes([kind]))

    def model(kind):
        pieces = piece("<unk>", 0, 2) + b"".join(piece("<0x%02X>" % b, 0, 6) for b in range(256))
        for i, text in enumerate("\u2581 a b c t h e \u2581a at cat the \u2581the".split()):
            pieces += piece(text, -1.0 - i, 1)
        trainer = b"\x18" + bytes([kind]) + b"\x98\x02\x01"  # model_type, byte_fallback
        # no prefix, extra spaces stay, escaped
        normal = field(1, b"identity") + b"\x18\0" + b"\x20\0" + b"\x28\1"
        return pieces + field(2, trainer) + field(3, normal)
    put("sentencepiece", a_unigram=model(1), bpe=model(2))


def bpe():
    """tokenizer.json: a letter per byte, or U+2581 for a space and bytes such as <0x41>."""
    def write(vocab, merges, **rest):
        return json.dumps({**rest, "model": {"type": "BPE", "vocab": vocab, "merges": merges}},
                          ensure_ascii=False, separators=(",", ":"))
    seen = [b for b in range(256) if 33 <= b <= 126 or (b >= 161 and b != 173)]
    rest = [b for b in range(256) if b not in seen]
    letters = {**{chr(b): b for b in seen}, **{chr(256 + i): b for i, b in enumerate(rest)}}
    words = {"th": 256, "\u0120c": 257, "the": 258, "<end>": 259}
    put("bpe", a_bytes=write({**letters, **words}, ["t h", "\u0120 c", "th e"],
                             added_tokens=[{"id": 259, "content": "<end>", "special": True}],
                             pre_tokenizer={"type": "ByteLevel"}),
        marks=write({**{"<0x%02X>" % b: b for b in range(256)}, "\u2581": 256, "a": 257,
                     "\u2581a": 258}, [["\u2581", "a"]], normalizer={
                         "type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                    pre_tokenizer={"type": "Metaspace"}))


def lines():
    put("words", a_train="\0--run\nr\n--data\nx\n--steps=3\n--rate\n1e-3\n",
        other="\0--lr=1e-3\n--batch_size\n4\n", ints="\x09--length\n64,128\n--quiet\n",
        attend="\6--q\nq.npy\n--k=k.npy\n--v\nv\n-o\nx\n",
        near="\0--stepps\n4\n", none="\1\n", choice="\0--dtype\nf3\n--help\n")


def papers():
    """Small files of the program: run.json, and runs for the command results."""
    run = {"version": "0.1.0", "data": "/a/mail.csv", "valid": "", "papers": "", "holdout": 0.1,
           "rows": "auto", "header": "yes", "text_column": "2", "label_column": "kind",
           "skip_bad": False}
    put("places", a_run=json.dumps(run), few='{"data": "x", "holdout": 0}',
        wrong='{"data": [], "holdout": "0", "rows": 3, "header": null, "skip_bad": 1}')
    row = {"task": "text", "preset": "lra/text", "attention": "local", "commit": "62673dc",
           "block": 16, "seed": 1, "steps": 900, "seconds": 61.5, "valid_accuracy": 0.5,
           "test_accuracy": 0.5, "test_error": 0.01}
    more = dict(row, valid_accuracy=0.6, fresh_accuracy=0.4, pretrain=100, task="other")
    put("results", a_two="\0" + json.dumps(row) + "\n\n" + json.dumps(more) + "\n",
        best="\1" + (json.dumps(row) + "\n") * 3, table="\2" + json.dumps(more))


with tempfile.TemporaryDirectory() as folder:
    models(pathlib.Path(folder))
    pack_zstd(pathlib.Path(folder))
states()
rows()
images()
pictures()
sentencepiece()
bpe()
lines()
papers()
