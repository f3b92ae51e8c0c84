"""The program among ranks: what it says, and how all of them end when one is killed or hangs.

    ranks.py PROGRAM MPIEXEC words          what it says
    ranks.py PROGRAM MPIEXEC kill [ROUNDS]  kill -9 of a rank at random moments (3 times)
"""
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM, MPIEXEC = sys.argv[1:3]
SKIPPED = 77
RANKS = 3
LIMIT = 60  # seconds in which all must have ended
STEPS = 100
SIZES = ("--preset small-listops --threads 1 --train_items 200 --valid_items 40 --batch 7 "
         "--listops_min 10 --listops_max 60 --length 64 --layers 1 --width 32 --hidden 32 "
         "--heads 2 --eval_every 50 --save_every 5 --rate 0.01").split()

ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1",
                   OMPI_MCA_btl_base_warn_component_unused="0",
                   OMP_WAIT_POLICY="passive")
ENVIRONMENT["ASAN_OPTIONS"] = "detect_leaks=0"


def check(good, *words):
    if not good:
        sys.exit(" ".join(str(w) for w in ("WRONG:",) + words))


def train(folder, *more):
    return [PROGRAM, "train", "--run", str(folder), *SIZES, "--steps", str(STEPS), *more]


def resume(folder):
    return [PROGRAM, "train", "--run", str(folder), "--resume", "--threads", "1"]


def together(command, ranks=RANKS, stdin=None, **more):
    return subprocess.Popen([MPIEXEC, "-n", str(ranks), *command], text=True, stdin=stdin,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env=dict(ENVIRONMENT, **more))


def finish(process, limit=LIMIT):
    """Its words; fails if it takes longer."""
    begin = time.monotonic()
    try:
        words, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        check(False, f"still there after {limit} s")
    return words, time.monotonic() - begin


def run(command, ranks=RANKS, good=True, stdin=None, **more):
    process = together(command, ranks, stdin, **more)
    words, _ = finish(process)
    check((process.returncode == 0) == good, "exit code", process.returncode, words)
    return words


def ranks_of(launcher):
    """Process ids by rank: the launcher's children that train by now."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            words = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(parent) == launcher.pid:
            here = [w.partition(b"=")[2] for w in words if w.startswith(b"OMPI_COMM_WORLD_RANK=")]
            if here:
                found[int(here[0])] = int(entry.name)
    return found


def wait_for(test, what):
    end = time.monotonic() + LIMIT
    while not test():
        check(time.monotonic() < end, "waited in vain for", what)
        time.sleep(0.002)


def last(folder):
    """Bits of the last checkpoint."""
    return (folder / f"step-{STEPS:09d}.safetensors").read_bytes()


def weights(folder):
    """Those of the last checkpoint; the notes before them say when it was written, too."""
    data = last(folder)
    return data[8 + int.from_bytes(data[:8], "little"):]


# ---- kill -9 ------------------------------------------------------------------------------------

def kill_once(room, whole, number, seconds):
    folder = room / f"killed-{number}"
    process = together(train(folder))
    wait_for(lambda: len(ranks_of(process)) == RANKS or process.poll() is not None, "all ranks")
    time.sleep(random.uniform(0, seconds))
    victim = random.randrange(RANKS)
    pid = ranks_of(process).get(victim)
    if pid and process.poll() is None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    words, took = finish(process)
    there = sorted(p.name for p in folder.glob("step-*")) if folder.exists() else []
    began = (folder / "config.json").exists()
    run(resume(folder) if began else train(folder))
    check(weights(folder) == weights(whole), "other weights after round", number)
    print(f"round {number}: rank {victim} killed, all ended after {took:.1f} s, went on from",
          there[-1] if there else "the beginning", flush=True)
    shutil.rmtree(folder)


def kill(room, rounds):
    begin = time.monotonic()
    run(train(room / "whole"))
    seconds = time.monotonic() - begin
    for number in range(rounds):
        kill_once(room, room / "whole", number, seconds)


# ---- words --------------------------------------------------------------------------------------

def says(words, *parts):
    for part in parts:
        check(part in words, "no", repr(part), "in", words)


def words(room):
    said = run(train(room / "quiet"))
    says(said, f"{RANKS} ranks over ", "each sends ")
    for once in ("parameters in", "valid loss"):
        check(said.count(once) == (1 if once[0] == "p" else STEPS // 50), once, "not once in", said)
    # by its own launcher's numbers, without MPI
    alone = subprocess.run(train(room / "none", "--device", "cpu"), text=True, capture_output=True,
                           env=dict(ENVIRONMENT, RANK="0", WORLD_SIZE="2", LOCAL_RANK="0"))
    check(alone.returncode == 1, alone)
    says(alone.stderr, "torchrun started 2 processes, and on the CPU they need MPI")
    alone = subprocess.run(train(room / "none", "--device", "cpu"), text=True, capture_output=True,
                           env=dict(ENVIRONMENT, SLURM_STEP_NUM_TASKS="2", SLURM_PROCID="0",
                                    HTRANSFORMER_MPI="/nowhere.so"))
    check(alone.returncode == 1, alone)
    says(alone.stderr, "srun started 2 processes, and on the CPU they need MPI", "was not found")
    says(run(train(room / "few", "--batch", "2"), good=False),
         "batch 2 cannot be shared by 3 ranks")
    says(run(train(room / "flag", "--steps", "x"), good=False), "--steps")
    says(run(train(room / "quiet"), good=False), "already holds a run")
    labelled_texts(room)
    one_fails(room)
    one_hangs(room)


def labelled_texts(room):
    """From stdin, which rank 0 alone has; the linear model beside it is rank 0's, too."""
    (room / "texts").write_text("".join(f"{i % 2}\t{'good' if i % 2 else 'bad'} text {i % 7}\n"
                                        for i in range(60)))
    folder = room / "texts-run"
    sizes = ("--preset small --data - --layers 1 --width 16 --heads 2 --hidden 16 --threads 1 "
             "--batch 7 --steps 6 --eval_every 3").split()
    with open(room / "texts") as stdin:
        said = run([PROGRAM, "train", "--run", str(folder), *sizes], stdin=stdin)
    says(said, "the baseline", "valid: linear model loss", "chosen: ")
    check(said.count("chosen: ") == 1, said)
    says(run(resume(folder) + ["--steps", "9"]), "chosen: ")
    one = subprocess.run([PROGRAM, "eval", str(folder), "--data", str(room / "texts")], text=True,
                         capture_output=True, env=ENVIRONMENT)
    check(one.returncode == 0, one)


def one_fails(room):
    """The second rank's file is not there."""
    (room / "some.tsv").write_text("".join(f"{i % 2}\ttext {i}\n" for i in range(40)))
    os.symlink(room / "some.tsv", room / "data-0")
    os.symlink(room / "some.tsv", room / "data-2")
    script = f'exec "$0" train --data {room}/data-$OMPI_COMM_WORLD_RANK "$@"'
    sizes = ["--run", str(room / "fails"), "--preset", "small", "--layers", "1", "--threads", "1"]
    said = run(["sh", "-c", script, PROGRAM, *sizes], good=False)
    says(said, "rank 1 of 3 failed: ", "data-1")


def one_hangs(room):
    folder = room / "hangs"
    process = together(train(folder, "--minutes", "5"), HTRANSFORMER_PATIENCE="2")
    wait_for(lambda: list(folder.glob("step-*0005.*")), "a checkpoint")
    os.kill(ranks_of(process)[1], signal.SIGSTOP)
    said, took = finish(process)
    check(process.returncode != 0, said)
    says(said, "waited 2 s for rank 1, which hangs or is gone")


def main():
    if not os.access(MPIEXEC, os.X_OK):
        print("skipped: there is no MPI here to start processes with")
        return SKIPPED
    room = pathlib.Path(tempfile.mkdtemp(prefix="ht-ranks-"))
    try:
        if sys.argv[3] == "kill":
            kill(room, int(sys.argv[4]) if len(sys.argv) > 4 else 3)
        else:
            words(room)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    return 0


sys.exit(main())
