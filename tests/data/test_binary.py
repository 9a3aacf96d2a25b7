import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.data.binary import HEADER, MAGIC, BinaryReader, BinaryWriter, id_type
from lamina.data.data_folder import UNFINISHED_NAME
from lamina.errors import DataError

SENTENCES = [[5, 6, 2], [2], [7, 8, 9, 10, 2]]


def write(prefix, sentences=SENTENCES, vocabulary_size=100):
    with BinaryWriter(prefix, vocabulary_size) as writer:
        for ids in sentences:
            writer.write(np.array(ids))
    return prefix


def index_bytes(sizes, offsets, *, magic=MAGIC, version=1, code=8, count=None):
    header = HEADER.pack(magic, version, code, len(sizes) if count is None else count)
    return header + np.array(sizes, "<i4").tobytes() + np.array(offsets, "<i8").tobytes()


@given(st.lists(st.lists(st.integers(0, 65499), max_size=8), max_size=20), st.sampled_from([100, 65499, 65500, 70000]))
@settings(max_examples=50, deadline=None)
def test_what_was_written_is_read(tmp_path_factory, sentences, vocabulary_size):
    prefix = write(tmp_path_factory.mktemp("binary") / "train", sentences, vocabulary_size)
    reader = BinaryReader(prefix)
    assert [ids.tolist() for ids in reader] == sentences
    assert reader.sizes.tolist() == [len(ids) for ids in sentences]
    assert reader.num_tokens == sum(map(len, sentences))
    assert reader.dtype == np.dtype("<u2" if vocabulary_size < 65500 else "<i4")


def test_blocks_give_the_same_bytes_as_single_sentences(tmp_path):
    write(tmp_path / "one")
    with BinaryWriter(tmp_path / "many", 100) as writer:
        writer.write_block(np.array([5, 6, 2, 2]), np.array([3, 1]))
        writer.write_block(np.array([], np.int64), np.array([], np.int64))
        writer.write_block(np.array([7, 8, 9, 10, 2]), np.array([5]))
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"many{ending}").read_bytes() == (tmp_path / f"one{ending}").read_bytes()


def test_layout_is_the_documented_one(tmp_path):
    write(tmp_path / "train")
    assert (tmp_path / "train.bin").read_bytes() == np.array([5, 6, 2, 2, 7, 8, 9, 10, 2], "<u2").tobytes()
    assert (tmp_path / "train.idx").read_bytes() == index_bytes([3, 1, 5], [0, 6, 8])
    assert id_type(65499) == np.uint16
    assert id_type(65500) == np.int32


def test_failed_writer_leaves_nothing_behind(tmp_path):
    def fail():
        with BinaryWriter(tmp_path / "train", 100) as writer:
            writer.write(np.array([5, 2]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_visible_before_the_end(tmp_path):
    writer = BinaryWriter(tmp_path / "train", 100)
    writer.write(np.array([5, 2]))
    assert not (tmp_path / "train.bin").exists()
    writer.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.bin", "train.idx"]


def test_views_share_the_mapped_file_and_cannot_be_written(tmp_path):
    reader = BinaryReader(write(tmp_path / "train"))
    with pytest.raises(ValueError, match="read-only"):
        reader[0][0] = 1
    assert reader[-1].tolist() == SENTENCES[-1]
    with pytest.raises(IndexError):
        reader[3]


def test_another_process_maps_the_file_itself(tmp_path):
    reader = BinaryReader(write(tmp_path / "train"))
    assert len(pickle.dumps(reader)) < 500
    assert [ids.tolist() for ids in pickle.loads(pickle.dumps(reader))] == SENTENCES


@pytest.mark.parametrize(("code", "name"), [(1, "<u1"), (2, "<i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (9, "<u4"),
                                            (10, "<u8")])
def test_every_integer_type_of_fairseq_is_read(tmp_path, code, name):
    width = np.dtype(name).itemsize
    (tmp_path / "train.bin").write_bytes(np.array([4, 2, 2], name).tobytes())
    (tmp_path / "train.idx").write_bytes(index_bytes([2, 1], [0, 2 * width], code=code))
    assert [ids.tolist() for ids in BinaryReader(tmp_path / "train")] == [[4, 2], [2]]


@pytest.mark.parametrize(("index", "message"), [
    (b"MMID", "it has 4 bytes, and its header alone takes 26"),
    (index_bytes([3, 1, 5], [0, 6, 8], magic=b"TNTIDX\x00\x00\x00"), "does not begin like an index"),
    (index_bytes([3, 1, 5], [0, 6, 8], version=2), "version 2"),
    (index_bytes([3, 1, 5], [0, 6, 8], code=6), "floating-point"),
    (index_bytes([3, 1, 5], [0, 6, 8], code=99), "unknown type 99"),
    (index_bytes([3, 1, 5], [0, 6, 8], count=4), "4 sentences need 74 bytes, but it has 62"),
    (index_bytes([3, 1, 5], [0, 6, 8], count=2**60), "sentences need"),
    (index_bytes([3, -1, 5], [0, 6, 8]), "sentence 1 has a negative size"),
    (index_bytes([3, 1, 5], [0, -6, 8]), "an offset is impossible"),
    (index_bytes([3, 1, 5], [0, 7, 8]), "an offset is impossible"),
    (index_bytes([3, 1, 5], [0, 6, 2**63 - 2]), "an offset is impossible"),
])
def test_damaged_index_is_refused(tmp_path, index, message):
    write(tmp_path / "train")
    (tmp_path / "train.idx").write_bytes(index)
    with pytest.raises(DataError, match=rf"train\.idx is damaged: .*{message}.*Run `lamina preprocess` again"):
        BinaryReader(tmp_path / "train")


def test_data_that_does_not_fit_its_index_is_refused(tmp_path):
    write(tmp_path / "train")
    data = (tmp_path / "train.bin").read_bytes()
    for wrong in (data[:-4], data + b"\x00\x00"):
        (tmp_path / "train.bin").write_bytes(wrong)
        with pytest.raises(DataError, match=f"expected 18 bytes, found {len(wrong)}. Run `lamina preprocess` again"):
            BinaryReader(tmp_path / "train")
    (tmp_path / "train.bin").unlink()
    with pytest.raises(DataError, match=r"train\.bin is missing, but its index is there"):
        BinaryReader(tmp_path / "train")
    (tmp_path / "train.idx").write_bytes(index_bytes([], []))
    (tmp_path / "train.bin").write_bytes(b"\x00\x00")
    with pytest.raises(DataError, match="expected 0 bytes, found 2"):
        BinaryReader(tmp_path / "train")


def test_missing_files_and_unfinished_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"train\.idx is missing"):
        BinaryReader(tmp_path / "train")
    write(tmp_path / "train")
    (tmp_path / UNFINISHED_NAME).write_text("")
    with pytest.raises(DataError, match="mixes old and new files"):
        BinaryReader(tmp_path / "train")


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_change_to_the_bytes_either_loads_or_is_an_error(tmp_path_factory, data):
    prefix = write(tmp_path_factory.mktemp("damaged") / "train")
    path = prefix.with_suffix(data.draw(st.sampled_from([".idx", ".bin"])))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["set", "cut", "grow"])):
            case "set":
                content[place] = data.draw(st.integers(0, 255))
            case "cut":
                del content[place + 1:]
            case "grow":
                content[place:place] = data.draw(st.binary(min_size=1, max_size=12))
    path.write_bytes(bytes(content))
    try:
        reader = BinaryReader(prefix)
    except DataError:
        return
    assert [len(ids) for ids in reader] == reader.sizes.tolist()
