"""A training run that is killed (-9) at random moments ends with the bits of one that was not; two
programs that write one file do not mix it; who reads beside a writer never misses.

    python3 kill.py --program htransformer [--kills 1000] [--seed 1]

Everything that stands under a final name is checked after every kill, by its own checksums and by a
reader of its own. Prints what was done and exits with 1 if anything was found.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

SIZES = {"F32": 4, "F64": 8, "BF16": 2, "F16": 2}
TRAIN = ("--listops_min 6 --listops_max 24 --train_items 24 --valid_items 6 --layers 2 --width 24 "
         "--heads 2 --hidden 48 --length 24 --block 4 --batch 4 --warmup 0 --dropout 0.1 "
         "--steps 40 --save_every 2 --eval_every 6 --keep 3 --threads 1 --quiet")
ENV = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", OMP_WAIT_POLICY="passive")


class Found(Exception):
    pass


def whole(path):
    """Is a checkpoint what was written? By the format's description, not by the program."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    meta = header.pop("__metadata__")
    sums = dict(word.rsplit("=", 1) for word in meta.pop("crc32").split())
    del meta["format"]
    bodies = {name: data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]]
              for name, t in header.items()}
    bodies.update((name, text.encode()) for name, text in meta.items())
    for name, t in header.items():
        count = SIZES[t["dtype"]]
        for n in t["shape"]:
            count *= n
        if len(bodies[name]) != count:
            return False
    return all("%08x" % zlib.crc32(body) == sums[name] for name, body in bodies.items())


def check_folder(folder):
    for path in folder.glob("*.safetensors"):
        try:
            good = whole(path)
        except Exception as why:
            raise Found("%s cannot be read: %r" % (path.name, why))
        if not good:
            raise Found("%s is damaged" % path.name)
    for name in ("config.json", "run.json"):
        if (folder / name).exists():
            json.loads((folder / name).read_text())


class Torture:
    def __init__(self, program, top, seed):
        self.program, self.top, self.random = program, top, random.Random(seed)

    def start(self, words):
        return subprocess.Popen([self.program] + words.split(), cwd=self.top, env=ENV,
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE)

    def must(self, words):
        child = self.start(words)
        _, said = child.communicate()
        if child.returncode:
            raise Found("%s ended with %d: %s" % (words, child.returncode, said.decode()))

    def kills(self, most):
        begin = time.monotonic()
        self.must("train --run whole " + TRAIN)
        longest = time.monotonic() - begin
        want = (self.top / "whole" / "step-000000040.safetensors").read_bytes()
        folder, done, runs, torn = self.top / "cut", 0, 0, 0
        while done < most:
            again = (folder / "config.json").exists()
            how = "--resume --threads 1 --quiet" if again else TRAIN
            child = self.start("train --run cut " + how)
            try:
                child.wait(self.random.uniform(0, longest))
                if child.returncode:
                    raise Found("kill %d: it ended by itself with %d: %s" % (
                        done, child.returncode, child.stderr.read().decode()))
                if (folder / "step-000000040.safetensors").read_bytes() != want:
                    raise Found("kill %d: not the bits of an undisturbed run" % done)
                if list(folder.glob(".*")):
                    raise Found("kill %d: left over: %s" % (done, list(folder.glob(".*"))))
                runs += 1
                shutil.rmtree(folder)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                child.wait()
                done += 1
                torn += folder.exists() and any(".httmp-" in p.name for p in folder.iterdir())
                if folder.exists():
                    check_folder(folder)
        print("kill: %d kills, %d of them while a file was written; %d runs went on to their end, "
              "with the bits of an undisturbed one" % (done, torn, runs))
        if not runs:
            raise Found("no run came to its end")

    def two_writers(self, turns):
        self.must("export whole --to f32.safetensors --dtype f32")
        self.must("export whole --to bf16.safetensors --dtype bf16")
        names = ("f32.safetensors", "bf16.safetensors")
        either = [(self.top / name).read_bytes() for name in names]
        for turn in range(turns):
            both = [self.start("export whole --to one.safetensors --dtype " + dtype)
                    for dtype in ("f32", "bf16")]
            if any(child.wait() for child in both):
                raise Found("two writers: one of them failed")
            if (self.top / "one.safetensors").read_bytes() not in either:
                raise Found("two writers: the file is neither's, turn %d" % turn)
        if list(self.top.glob(".*")):
            raise Found("two writers: left over: %s" % list(self.top.glob(".*")))
        print("two writers: %d turns, the file was always one of theirs" % turns)

    def reader_beside(self, turns):
        trainer = self.start("train --run beside " + TRAIN.replace("--steps 40", "--steps 1000000")
                             .replace("--save_every 2", "--save_every 1")
                             .replace("--keep 3", "--keep 1"))
        try:
            while not list((self.top / "beside").glob("step-*")):
                time.sleep(0.01)
            for turn in range(turns):
                self.must("export beside --last --to seen.safetensors --dtype f32")
                if trainer.poll() is not None:
                    raise Found("reader: the trainer ended: " + trainer.stderr.read().decode())
        finally:
            trainer.kill()
            trainer.wait()
        print("reader beside a writer: %d turns, none missed" % turns)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    room = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # files there need no disk
    top = pathlib.Path(tempfile.mkdtemp(prefix="ht-torture-", dir=room))
    torture = Torture(os.path.abspath(args.program), top, args.seed)
    try:
        torture.kills(args.kills)
        torture.two_writers(max(10, args.kills // 7))
        torture.reader_beside(max(10, args.kills // 3))
    except Found as what:
        print("torture: FOUND %s" % what)
        return 1
    finally:
        shutil.rmtree(top, ignore_errors=True)
    return 0


sys.exit(main())
