"""A process that writes what it is told through a socket, until that is closed. It imports little, as it begins often."""

import contextlib
import os
import pickle
import sys


def serve(orders, answers):
    files = {}
    while True:
        done, error = 0, None
        try:
            operations = pickle.load(orders)
        except EOFError:
            return
        for one in operations:
            try:
                perform(files, *one)
            except OSError as problem:
                error = problem.errno
                break
            done += 1
        if error:  # a training that gets an error closes its files
            for file in files.values():
                with contextlib.suppress(OSError):
                    os.close(file)
            files.clear()
        pickle.dump((done, error), answers)
        answers.flush()


def perform(files, what, path, data=b""):
    if what == "mkdir":
        os.makedirs(path, exist_ok=True)
    elif what == "write":
        with open(path, "wb") as file:
            file.write(data)
    elif what == "replace":  # as safetensors writes
        temporary = os.path.join(os.path.dirname(path), ".tmp" + os.path.basename(path)[:6])
        perform(files, "write", temporary, data)
        os.rename(temporary, path)
    elif what == "move":
        os.rename(path, data)
    elif what == "remove":
        os.unlink(path)
    elif what == "truncate":
        os.truncate(path, 0)
    elif what == "look":  # opens it for reading and writing, and writes nothing
        os.close(os.open(path, os.O_RDWR))
    elif what == "half":
        files[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(files[path], data[: len(data) // 2])
    elif what == "rest":
        file = files.pop(path)
        try:
            os.write(file, data[len(data) // 2 :])
        finally:
            os.close(file)


if __name__ == "__main__":
    with open(int(sys.argv[1]), "rb", closefd=False) as orders, open(int(sys.argv[1]), "wb") as answers:
        serve(orders, answers)
