"""Sharded checkpoints are read whole, row by row, and without trust: their index is a pickle."""

import pickle
import random
import shutil
from contextlib import suppress
from dataclasses import dataclass

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.utils.serialization import config as torch_files

import lamina.checkpoint.format as format_module
from lamina.checkpoint.format import Checkpoint, load_checkpoint, save_checkpoint
from lamina.checkpoint.runs import shards_without_name
from lamina.checkpoint.shard_index import INDEX_NAME, read_index
from lamina.checkpoint.shards import DESCRIPTION_NAME, LazyTensor, is_sharded
from lamina.cli import main
from lamina.errors import CheckpointError, DamageError
from lamina.files import file_hash
from lamina.interop.any_format import load_any

WHOLE = {"weights/table": torch.arange(12.0).view(4, 3), "weights/bias": torch.ones(5)}


@pytest.fixture
def folder(tmp_path):
    """Written by torch itself, and described by us."""
    path = tmp_path / "shards-x"
    dcp.save(dict(WHOLE), checkpoint_id=path, no_dist=True)
    describe(path)
    return path


def describe(path, **changes):
    files = {name.name: file_hash(name) for name in path.iterdir() if name.name != DESCRIPTION_NAME}
    save_checkpoint(path / DESCRIPTION_NAME, Checkpoint(config={}, languages=(), dictionaries=(), subwords=(), weights={},
                                                        shards={"folder": path.name, "files": files, **changes}))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
class TestReading:
    def test_the_index_of_torchs_own_writer_is_read(self, folder):
        found = read_index(folder)
        assert {name: (stored.shape, stored.dtype) for name, stored in found.items()} == {
            "weights/table": ((4, 3), torch.float32), "weights/bias": ((5,), torch.float32)}

    def test_by_the_name_beside_it_and_from_inside_whatever_it_is_called(self, folder, tmp_path):
        shutil.copy(folder / DESCRIPTION_NAME, tmp_path / "best.pt")
        renamed = shutil.copytree(folder, tmp_path / "elsewhere" / "renamed")
        for path in (tmp_path / "best.pt", folder / DESCRIPTION_NAME, renamed / DESCRIPTION_NAME):
            assert torch.equal(load_checkpoint(path).weights["table"], WHOLE["weights/table"])
        assert is_sharded(renamed)
        assert torch.equal(load_any(renamed).weights["bias"], WHOLE["weights/bias"])

    def test_the_index_that_an_older_python_writes_is_read(self, tmp_path, monkeypatch):
        """Up to 3.11.3 the member of an enumeration is got by its name."""
        monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", lambda self, protocol: (getattr, (type(self), self.name)))
        path = tmp_path / "shards-x"
        dcp.save(dict(WHOLE), checkpoint_id=path, no_dist=True)
        assert b"getattr" in (path / INDEX_NAME).read_bytes()
        assert {name: stored.shape for name, stored in read_index(path).items()} == {
            name: tuple(tensor.shape) for name, tensor in WHOLE.items()}

    def test_in_pieces_where_files_are_mapped(self, folder):
        with torch_files.patch({"load.mmap": True}):
            table = load_checkpoint(folder / DESCRIPTION_NAME).weights["table"]
        assert isinstance(table, LazyTensor)
        assert (table.shape, table.dtype, table.device.type, table.is_meta) == ((4, 3), torch.float32, "cpu", False)
        rows = table[1:3]
        assert type(rows) is torch.Tensor
        assert torch.equal(rows, WHOLE["weights/table"][1:3])
        assert table[4:4].shape == (0, 3)
        assert torch.equal(table + 1, WHOLE["weights/table"] + 1)
        assert torch.equal(torch.zeros(4, 3).copy_(table), WHOLE["weights/table"])
        assert torch.equal(table.index_select(0, torch.tensor([2])), WHOLE["weights/table"][2:3])
        assert torch.zeros(4, 3, device="meta").copy_(table).is_meta
        assert repr(table) == "LazyTensor(shape=(4, 3), dtype=torch.float32)"

    def test_folders_that_no_file_needs(self, folder, tmp_path):
        shutil.copy(folder / DESCRIPTION_NAME, tmp_path / "best.pt")
        spare = shutil.copytree(folder, tmp_path / "shards-spare")
        assert shards_without_name(tmp_path, [tmp_path / "best.pt", tmp_path / "missing.pt"]) == [spare]
        assert sorted(shards_without_name(tmp_path, [])) == [spare, folder]
        assert shards_without_name(folder, []) == []

    def test_a_description_without_its_folder_says_what_to_do(self, folder, tmp_path):
        lonely = tmp_path / "alone"
        lonely.mkdir()
        shutil.copy(folder / DESCRIPTION_NAME, lonely / "best.pt")
        with pytest.raises(DamageError, match="Its folder belongs to it: copy both, or make one file of them"):
            load_checkpoint(lonely / "best.pt")

    def test_a_run_that_replaces_it_meanwhile_is_read_in_its_place(self, folder, tmp_path, monkeypatch):
        shutil.copy(folder / DESCRIPTION_NAME, tmp_path / "last.pt")
        newer = shutil.copytree(folder, tmp_path / "shards-y")
        describe(newer)
        whole = format_module.read_shards

        def replace_and_read(path, shards):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copy(newer / DESCRIPTION_NAME, tmp_path / "last.pt")
            return whole(path, shards)

        monkeypatch.setattr(format_module, "read_shards", replace_and_read)
        assert torch.equal(load_checkpoint(tmp_path / "last.pt").weights["table"], WHOLE["weights/table"])

    @pytest.mark.parametrize("name", [INDEX_NAME, "__0_0.distcp"])
    def test_damage_is_noticed(self, folder, name):
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
        with pytest.raises(DamageError, match=f"{name} is damaged: its content does not match its checksum"):
            load_checkpoint(folder / DESCRIPTION_NAME)

    def test_a_folder_of_another_program_is_refused_in_a_line(self, folder, tmp_path, capsys):
        (folder / DESCRIPTION_NAME).unlink()
        with pytest.raises(CheckpointError, match=r"a folder of torch\.distributed\.checkpoint that Lamina did"):
            load_any(folder)
        for command in ("info", "convert"):
            more = ["--output", str(tmp_path / "out.pt")] if command == "convert" else []
            assert main([command, str(folder), *more]) == 2
            assert capsys.readouterr().err.count("\n") <= 2
        assert not (tmp_path / "out.pt").exists()


@dataclass
class Evil:
    """Runs something when it is unpickled freely."""

    path: str

    def __reduce__(self):
        return open, (self.path, "w")


class SystemCall:
    def __reduce__(self):
        import os

        return os.system, ("true",)


def write_index(folder, content):
    (folder / INDEX_NAME).write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
    describe(folder)


def index(*, shape=(4, 3), chunks=(((0, 0), (4, 3)),), file="__0_0.distcp", offset=0, length=48, dtype=torch.float32,
          name="weights/table"):
    tensor = TensorStorageMetadata(TensorProperties(dtype), torch.Size(shape),
                                   [ChunkStorageMetadata(torch.Size(begin), torch.Size(size)) for begin, size in chunks])
    places = {MetadataIndex(name, begin): _StorageInfo(file, offset, length) for begin, _ in chunks}
    return Metadata({name: tensor}, storage_data=places)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
class TestMistrust:
    @pytest.mark.parametrize("content", [Evil, SystemCall, lambda _: Metadata({}, planner_data=SystemCall()),
                                         lambda _: Metadata({}, storage_data={SystemCall(): 1})])
    def test_nothing_that_it_names_runs(self, folder, tmp_path, content):
        trace = tmp_path / "trace"
        write_index(folder, content(str(trace)) if content is not SystemCall else SystemCall())
        with pytest.raises(DamageError, match=r"it needs the Python object \w+\.\w+, and from files only") as error:
            load_checkpoint(folder / DESCRIPTION_NAME)
        assert "\n" not in str(error.value)
        assert not trace.exists()

    @pytest.mark.parametrize("name", ["torch.load", "torch.serialization.load", "torch.storage.UntypedStorage", "torch.ops",
                                      "torch.distributed.checkpoint.metadata.pickle", "builtins.eval", "torch.Tensor",
                                      "torch.distributed.checkpoint.filesystem.FileSystemReader"])
    def test_other_names_of_torchs_are_refused_too(self, folder, name):
        module, _, member = name.rpartition(".")
        write_index(folder, f"c{module}\n{member}\n.".encode())
        with pytest.raises(DamageError, match="it needs the Python object"):
            load_checkpoint(folder / DESCRIPTION_NAME)

    @pytest.mark.parametrize(("changes", "reason"), [
        ({"file": "../other.distcp"}, "which is no plain name"),
        ({"file": "/etc/passwd"}, "which is no plain name"),
        ({"file": "missing.distcp"}, "missing.distcp is missing"),
        ({"shape": (5, 3)}, "lacks some of its rows"),
        ({"shape": (2**40, 3), "chunks": (((0, 0), (2**40, 3)),)}, "is larger than its place"),
        ({"offset": 2**40}, "is shorter than"),
        ({"offset": -1}, "is larger than its place"),
        ({"chunks": (((1, 0), (3, 3)),)}, "not cut into rows that follow each other"),
        ({"chunks": (((0, 0), (4, 2)),)}, "not cut into rows that follow each other"),
        ({"chunks": (((0, 0), (4, 3)), ((0, 0), (4, 3)))}, "not cut into rows that follow each other"),
        ({"chunks": ()}, "lacks some of its rows"),
        ({"shape": (-4, 3)}, "a shape is no shape"),
        ({"length": "48"}, "the length of a StorageInfo is not what it should be"),
        ({"dtype": "float32"}, "the dtype of a TensorProperties is not what it should be"),
        ({"name": "others/table"}, "which no checkpoint of Lamina has"),
    ])
    def test_what_does_not_add_up_is_refused(self, folder, changes, reason):
        write_index(folder, index(**changes))
        with pytest.raises(DamageError, match=reason):
            load_checkpoint(folder / DESCRIPTION_NAME)

    def test_a_piece_is_not_many_tensors(self, folder):
        many, one = index(), index()
        size = (folder / "__0_0.distcp").stat().st_size
        for number in range(2 + size // 48):
            name = f"weights/{number}"
            many.state_dict_metadata[name] = one.state_dict_metadata["weights/table"]
            many.storage_data[MetadataIndex(name, (0, 0))] = one.storage_data[MetadataIndex("weights/table", (0, 0))]
        write_index(folder, many)
        with pytest.raises(DamageError, match="names the same bytes more than once"):
            load_checkpoint(folder / DESCRIPTION_NAME)

    @pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps([1, 2]), pickle.dumps(None), b"\x80\x04P1\n."])
    def test_what_is_no_index_is_damage(self, folder, content):
        write_index(folder, content)
        with pytest.raises(DamageError, match="cannot be read"):
            load_checkpoint(folder / DESCRIPTION_NAME)

    def test_every_prefix_of_an_index_is_damage(self, folder):
        content = (folder / INDEX_NAME).read_bytes()
        for length in range(0, len(content), 7):
            (folder / INDEX_NAME).write_bytes(content[:length])
            with pytest.raises(DamageError):
                read_index(folder)

    def test_whatever_else_an_index_becomes_is_damage_or_reads(self, folder):
        content = (folder / INDEX_NAME).read_bytes()
        generator = random.Random(5)
        for _ in range(400):
            changed = bytearray(content)
            for _ in range(generator.randrange(1, 4)):
                changed[generator.randrange(len(changed))] = generator.randrange(256)
            (folder / INDEX_NAME).write_bytes(changed)
            with suppress(DamageError):
                assert all(stored.chunks for stored in read_index(folder).values())

    @pytest.mark.parametrize("shards", [{"folder": "../x"}, {"folder": "x", "files": {"../y": ""}}, {"folder": 1},
                                        {"files": {}}, {"folder": "x", "files": {"a": 1}}, {"folder": "x", "files": []}])
    def test_a_description_names_plain_files(self, tmp_path, shards):
        path = tmp_path / "described.pt"
        save_checkpoint(path, Checkpoint(config={}, languages=(), dictionaries=(), subwords=(), weights={}, shards=shards))
        with pytest.raises(DamageError, match="its field shards does not hold what it should"):
            load_checkpoint(path)

    def test_an_archive_in_a_shard_holds_a_tensor_and_nothing_else(self, folder):
        found = read_index(folder)["weights/table"].chunks[0]
        content = bytearray((folder / found.file).read_bytes())
        place = content.index(b"FloatStorage", found.offset)
        content[place : place + 5] = b"Evil_"
        (folder / found.file).write_bytes(content)
        describe(folder)
        with pytest.raises(DamageError, match="cannot be read") as error:
            load_checkpoint(folder / DESCRIPTION_NAME)
        assert "\n" not in str(error.value)
