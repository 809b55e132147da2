"""Scores translations with COMET in an environment of its own; talks JSON lines, knows no bestk.

    python comet_worker.py MODEL

MODEL is a name that COMET knows or a checkpoint file. The first line out is {"ready": MODEL}; then
each line in, {"pairs": [{"src": …, "mt": …}, …]}, gives one line out, {"scores": […]}. A failure is
{"error": …}. Standard output carries nothing else; what libraries print goes to standard error.
"""

import json
import sys
from pathlib import Path


def main(name: str) -> int:
    """Answer requests until standard input ends."""
    out = sys.stdout
    sys.stdout = sys.stderr
    # The folder of a script comes first on the path, and this one has a comet.py of its own.
    sys.path.pop(0)

    def say(message: dict[str, object]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        from comet import download_model, load_from_checkpoint

        path = name if Path(name).exists() else download_model(name)
        model = load_from_checkpoint(path)
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return 1
    say({"ready": name})
    for line in sys.stdin:
        try:
            pairs = json.loads(line)["pairs"]
            output = model.predict(pairs, batch_size=16, gpus=_gpus(), progress_bar=False)
            say({"scores": [float(score) for score in output.scores]})
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})
    return 0


def _gpus() -> int:
    import torch

    return 1 if torch.cuda.is_available() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
