"""Print the newest checkpoint in a folder whose every byte is right, if there is one.

    python newest_whole_checkpoint.py FOLDER

Damaged checkpoints that are newer are moved aside: the run that goes on will come to their
steps again, and `save_sharded` writes over nothing. Needs lesson 16's functions in pieces.py.
"""

import re
import sys
import time
from pathlib import Path

from pieces import CheckpointError, read_manifest, read_shard

named = re.compile(r"step_\d{8,}").fullmatch
folders = [path for path in Path(sys.argv[1]).glob("step_*") if named(path.name)]
folders.sort(key=lambda path: int(path.name.removeprefix("step_")), reverse=True)
for folder in folders:
    try:
        for shard in read_manifest(folder)["shards"]:
            read_shard(folder, shard)
    except CheckpointError as problem:
        aside = folder.rename(folder.with_name(f"damaged_{time.time():.0f}_{folder.name}"))
        print(f"{problem} (moved to {aside.name})", file=sys.stderr)
    else:
        print(folder)
        break
