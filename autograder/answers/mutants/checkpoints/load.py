"""Wrong answers to lesson 16, exercise 3: verify and load."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

LOAD, UPKEEP = "16-ex3-load", "16-ex4-upkeep"


the_schema_comes_last = edit(
    LOAD,
    """You looked at other entries before the schema. In a manifest of another schema they may have other names or
    meanings: read the schema first, and nothing else if it is not yours.""",
    (
        "    manifest = json.loads(data)\n",
        '    manifest = json.loads(data)\n    ranks_there = manifest["world_size"]\n',
    ),
    ('list(range(manifest["world_size"])):', "list(range(ranks_there)):"),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

any_schema_will_do = edit(
    LOAD,
    """You read a manifest of another schema as if it were this one. Its entries may mean something else: raise a
    CheckpointError that names the schema.""",
    ('    if (schema := manifest.get("schema")) != SCHEMA:\n', '    schema = manifest.get("schema")\n    if False:\n'),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

only_newer_schemas_are_refused = edit(
    LOAD,
    """You refused only newer schemas, and accepted a manifest without any. Only SCHEMA itself is known: everything else
    is a CheckpointError.""",
    ('(schema := manifest.get("schema")) != SCHEMA', '(schema := manifest.get("schema", 0)) > SCHEMA'),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

older_schemas_are_read = edit(
    LOAD,
    """You accepted an older schema. Its manifest may mean something else as well: only SCHEMA itself is known.""",
    (
        '(schema := manifest.get("schema")) != SCHEMA',
        'not isinstance(schema := manifest.get("schema"), int) or schema > SCHEMA',
    ),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

the_schema_comes_before_the_digest = edit(
    LOAD,
    """You looked at the schema before the digest. In a damaged manifest the schema may be wrong, too: compare the
    digest first.""",
    (
        "    if hashlib.sha256(data).hexdigest().encode() != digest.strip():\n",
        "    with contextlib.suppress(ValueError):\n"
        '        if "schema" in (manifest := json.loads(data)) and manifest["schema"] != SCHEMA:\n'
        '            raise CheckpointError(f"{path} has another schema than {SCHEMA}")\n'
        "    if hashlib.sha256(data).hexdigest().encode() != digest.strip():\n",
    ),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

LISTED = '    if [shard["rank"] for shard in manifest["shards"]] != list(range(manifest["world_size"])):\n'

the_files_come_before_the_list = edit(
    LOAD,
    """You compared the files with the list of shards before you checked the list itself. A file whose shard is not
    listed is then blamed, although it belongs there: check the list first.""",
    (LISTED, "    if False:\n"),
    (
        'or load another checkpoint")\n    return manifest\n',
        'or load another checkpoint")\n'
        + LISTED
        + "        raise CheckpointError(f'{path}: its shards are not one a rank')\n"
        "    return manifest\n",
    ),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

hidden_files_pass = edit(
    LOAD,
    """You overlooked a file whose name begins with a dot. The manifest does not list it either: look at every entry of
    the folder.""",
    ("not in files}", 'not in files and not file.name.startswith(".")}'),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

the_manifest_is_trusted = edit(
    LOAD,
    """You did not compare the manifest with its own digest. It says where every tensor is and what every digest should
    be, so a flipped bit in it is as bad as one in a shard.""",
    ("    if hashlib.sha256(data).hexdigest().encode() != digest.strip():\n", "    if not digest:\n"),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

a_surplus_file_passes = edit(
    LOAD,
    """You overlooked a file that the manifest does not list. A folder with a surplus shard is a mixture of two
    checkpoints: compare in both directions.""",
    ("for name in sorted({*listed, *there}):", "for name in sorted(listed):"),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

a_surplus_folder_passes = edit(
    LOAD,
    """You looked only at the files in the folder. A folder in it that the manifest does not list does not belong there
    either: look at every entry.""",
    ("not in files}", "not in files and file.is_file()}"),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

missing_shards_of_others = edit(
    LOAD,
    """You did not check that the files are there and have the right length. `latest` then offers a checkpoint with a
    missing shard.""",
    ("        if listed.get(name) != there.get(name):\n", "        if name not in listed:\n"),
    breaks=tests_of(LOAD),
    fails=["manifests_are_verified"],
)

the_order_is_not_looked_at = edit(
    LOAD,
    """You counted the shards, but did not compare their order. Entry number r would then be loaded as rank r's, with
    another rank's pieces.""",
    ('[shard["rank"] for shard in manifest["shards"]]', 'sorted(shard["rank"] for shard in manifest["shards"])'),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

the_manifest_is_read_alone = edit(
    LOAD,
    """Every rank read the manifest by itself and did not report how it went. A rank that does not see the folder
    raises, and the others wait for it: everything that can fail belongs inside `together`.""",
    (
        "    def load():\n        manifest, ours = read_manifest(path), dist.get_world_size()\n",
        "    manifest, ours = read_manifest(path), dist.get_world_size()\n\n    def load():\n",
    ),
    breaks=tests_of(LOAD),
    fails=["refuses_damage_on_every_rank"],
)

everybody_gets_everything = edit(
    LOAD,
    """You sent what each rank had loaded to all others, together with the message that all went well. That puts the
    whole state on every rank and on the wire: send only that it went well.""",
    ("        return manifest", "        return manifest, loaded"),
    ("(load)[dist.get_rank()]", "(load)[dist.get_rank()][0]"),
    breaks=tests_of(LOAD),
)

ranks_are_not_counted = edit(
    LOAD,
    """You did not compare the list of shards with world_size. With one entry too few, or one twice, a piece of every
    tensor is missing or doubled.""",
    ('if [shard["rank"] for shard in manifest["shards"]] != list(range(manifest["world_size"])):', "if False:"),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

every_rank_for_itself = edit(
    LOAD,
    """The rank whose shard is damaged raised an error, while the others returned their states: half loaded. The ranks
    must tell each other how it went before any of them returns.""",
    ("    return loaded, together(load)[dist.get_rank()]\n", "    return loaded, load()\n"),
    breaks=tests_of(LOAD),
    fails=["refuses_damage_on_every_rank"],
)

any_number_of_ranks = edit(
    LOAD,
    """You loaded a checkpoint of more ranks than there are, which silently loses the last ranks' pieces. Compare the
    manifest's world_size with that of the group.""",
    ('if (saved := manifest["world_size"]) != ours:', 'if (saved := manifest["world_size"]) < ours:'),
    breaks=tests_of(LOAD),
    fails=["refuses_damage_on_every_rank"],
)

not_told_what_to_do = edit(
    LOAD,
    """Your error says that the numbers of ranks differ, but not what to do. Name reshard and both numbers in it.""",
    ('f"{path} is of {saved} ranks, here are {ours}: reshard(path, target_root, {ours})"', '"wrong number of ranks"'),
    breaks=tests_of(LOAD),
    fails=["refuses_damage_on_every_rank"],
)

only_one_number_is_named = edit(
    LOAD,
    """Your error names reshard and one of the two numbers of ranks. Name both: how many ranks the checkpoint has, and
    how many there are.""",
    (
        'f"{path} is of {saved} ranks, here are {ours}: reshard(path, target_root, {ours})"',
        'f"{path} is of another number of ranks: reshard(path, target_root, {ours})"',
    ),
    breaks=tests_of(LOAD),
    fails=["refuses_damage_on_every_rank"],
)

values_are_not_restored = edit(
    LOAD,
    """Your state has only the tensors. The step count, the learning rate and all other plain values are in the
    manifest, and belong to the state.""",
    (', **manifest["values"])', ")"),
    breaks=tests_of(LOAD),
)

every_rank_loads_rank_0 = edit(
    LOAD,
    """Every rank read the first shard. Rank r's pieces are in shard r.""",
    ('manifest["shards"][dist.get_rank()])', 'manifest["shards"][0])'),
    breaks=tests_of(LOAD),
)

no_folder_is_another_error = edit(
    LOAD,
    """You let a missing manifest raise FileNotFoundError. Code that falls back to an older checkpoint catches
    CheckpointError, so everything that is wrong with a checkpoint must raise that.""",
    ("    if not all(file.is_file() for file in files):\n", "    if False:\n"),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified"],
)
