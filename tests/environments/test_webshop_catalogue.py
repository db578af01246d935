"""How official files become a catalogue: parsing rules, streaming, and the on-disk form."""

from __future__ import annotations

import io
import json
import lzma
import threading

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taspo_trl.environments.webshop import json_stream
from taspo_trl.environments.webshop.json_stream import stream_items, stream_pairs
from taspo_trl.environments.webshop.products import (
    Product,
    index_text,
    is_listed,
    parse_human,
    parse_options,
    parse_prices,
    parse_product,
    parse_synthetic,
)
from taspo_trl.errors import ConfigurationError


RAW = {
    "asin": "A1",
    "name": "Blue Mug",
    "full_description": "Holds Tea.",
    "pricing": "$5.00$7.50",
    "images": [""],
    "product_category": "Home › Kitchen",
    "small_description": ["Glazed", "Heavy"],
    "customization_options": {"Size": [{"value": " Small/Flat "}, {"value": "Large"}], "Lid": None},
    "category": "garden",
    "query": " Coffee Mugs ",
}
ANNOTATION = {"attributes": ["hand made"], "instruction": "Find me a mug", "instruction_attributes": ["hand made"]}


@pytest.mark.parametrize(
    ("pricing", "prices", "tag"),
    [
        ("$19.99", (19.99,), "$19.99"),
        ("$100.0", (100.0,), "$100.0"),
        ("$5.00$7.50", (5.0, 7.5), "$5.0 to $7.5"),
        ("$1,299.00", (1299.0,), "$1299.0"),
        ("$1.00$2.00$3.00", (1.0, 2.0), "$1.0 to $2.0"),
        ("", (100.0,), "$100.0"),
        (None, (100.0,), "$100.0"),
        ("call us", (100.0,), "$100.0"),
        ("$", (100.0,), "$100.0"),
    ],
)
def test_prices_are_read_as_one_price_or_a_range(pricing, prices, tag):
    assert parse_prices(pricing) == prices
    assert parse_product({**RAW, "pricing": pricing}, None).price_tag == tag


def test_options_are_lower_case_with_slashes_set_off():
    assert parse_options({"Size": [{"value": " Small/Flat "}, {"value": "XL"}], "Lid": None}) == {
        "size": ("small | flat", "xl")
    }
    assert parse_options(None) == {}


@pytest.mark.parametrize(("asin", "listed"), [("B000000001", True), ("nan", False), ("B0000000012", False)])
def test_broken_ids_are_not_listed(asin, listed):
    assert is_listed(asin) is listed


def test_a_product_without_annotation_has_a_dummy_attribute():
    assert parse_product(RAW, None).attributes == ("DUMMY_ATTR",)
    assert parse_product(RAW, []).attributes == ()


@pytest.mark.parametrize(
    ("features", "parsed"), [(["a", "b"], ("a", "b")), ("a", ("a",)), ("", ("",)), ([], ()), (None, ())]
)
def test_features_may_be_a_list_or_one_text(features, parsed):
    assert parse_product({**RAW, "small_description": features}, None).features == parsed


def test_indexed_text_is_title_description_first_feature_and_options():
    assert index_text(parse_product(RAW, None)) == "blue mug holds tea. glazed size: small | flat, large"


def test_instructions_without_attributes_are_no_goals():
    assert parse_synthetic({"attributes": ["x"]}) is None
    assert parse_synthetic({**ANNOTATION, "instruction_attributes": []}) is None
    wishes = [
        {"instruction": "a mug.", "instruction_attributes": ["hand made"], "instruction_options": ["large"]},
        {"instruction": "any mug", "instruction_attributes": [], "instruction_options": []},
    ]
    [wish] = parse_human(wishes)
    assert (wish.text, wish.attributes, wish.options) == ("a mug", ("hand made",), ("large",))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(values), st.integers(1, 40), st.sampled_from([None, 1]))
@example([0.5, 12, -3e10], 1, None)  # a number cut at every place
def test_streaming_an_array_gives_what_json_load_gives(items, chunk, indent):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", chunk)
        assert list(stream_items(io.StringIO(json.dumps(items, indent=indent)), "f")) == items


@given(st.dictionaries(st.text(), values), st.integers(1, 40))
def test_streaming_an_object_gives_what_json_load_gives(pairs, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", chunk)
        assert dict(stream_pairs(io.StringIO(json.dumps(pairs)), "f")) == pairs


def test_numbers_that_json_does_not_know_are_read_as_json_load_reads_them():
    [item] = stream_items(io.StringIO('[{"rating": NaN}]'), "f")
    assert item["rating"] != item["rating"]


@pytest.mark.parametrize("text", ["", "[", "[1", "[1,", '[{"a": 1', "[1 2]", "{}"])
def test_a_damaged_file_is_named(text):
    with pytest.raises(ConfigurationError, match=r"'items\.json' is cut or damaged"):
        list(stream_items(io.StringIO(text), "items.json"))


@pytest.fixture
def official(tmp_path):
    """A folder with three products in the official format, one of them twice and one broken."""
    products = [
        RAW,
        {**RAW, "name": "Twin"},
        {**RAW, "asin": "nan"},
        {**RAW, "asin": "A2", "name": "Red Plate", "customization_options": "", "pricing": "$3.00"},
        {**RAW, "asin": "A3", "name": "Tea Pot", "query": "pots"},
    ]
    with lzma.open(tmp_path / "items_shuffle_9.json.xz", "wt") as stream:
        json.dump(products, stream)
    (tmp_path / "items_ins_v2_9.json").write_text(json.dumps({"A1": ANNOTATION, "A2": {"attributes": ["flat"]}}))
    wish = {"instruction": "a pot", "instruction_attributes": ["round"], "instruction_options": []}
    (tmp_path / "items_human_ins.json").write_text(json.dumps({"A3": [wish, wish]}))
    return tmp_path


def test_files_that_belong_together_are_found(official):
    from taspo_trl.environments.webshop.files import find_files

    found = find_files(official)
    assert (found.products.name, found.synthetic.name, found.human.name) == (
        "items_shuffle_9.json.xz",
        "items_ins_v2_9.json",
        "items_human_ins.json",
    )
    assert find_files(official / "items_shuffle_9.json.xz") == found


def test_missing_and_ambiguous_files_are_explained(official, tmp_path):
    from taspo_trl.environments.webshop.files import find_files

    (official / "items_shuffle.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="exactly one products file"):
        find_files(official)
    with pytest.raises(ConfigurationError, match=r"items_ins_v2\.json"):
        find_files(official / "items_shuffle.json")
    with pytest.raises(ConfigurationError, match="no WebShop catalogue"):
        find_files(tmp_path / "nowhere")


def test_a_file_too_big_for_memory_names_the_index_builder(official, monkeypatch):
    from taspo_trl.environments.webshop import shop

    monkeypatch.setattr(shop, "_MAX_FILE_BYTES", {".xz": 10})
    with pytest.raises(ConfigurationError, match=r"python -m taspo_trl\.environments\.webshop"):
        shop._load(str(official))


@pytest.fixture
def both(official, tmp_path):
    """The same catalogue in memory and on disk."""
    pytest.importorskip("regex")
    pytest.importorskip("nltk")
    from taspo_trl.environments.webshop.disk import DiskCatalogue, build_catalogue
    from taspo_trl.environments.webshop.shop import _load

    identity = build_catalogue(official, tmp_path / "built")
    disk = DiskCatalogue(tmp_path / "built")
    assert disk.identity == identity
    return _load(str(official)), disk


def test_disk_and_memory_catalogues_are_the_same_shop(both):
    memory, disk = both
    assert memory.identity == disk.identity
    assert [memory.entry(number) for number in range(len(memory))] == [disk.entry(number) for number in range(3)]
    assert [entry.product.asin for entry in map(memory.entry, range(3))] == ["A1", "A2", "A3"]
    for name in ("price_ranges", "synthetic", "human"):
        np.testing.assert_array_equal(getattr(memory, name), getattr(disk, name))
    assert memory.synthetic.tolist() == [[0, 2]]
    assert memory.human.tolist() == [[2, 0], [2, 1]]
    for query in ("mug", "tea", "red tea pot", "nothing", "glazed"):
        assert list(memory.search(query, 50)) == list(disk.search(query, 50))
    for field, value in (("attribute", "flat"), ("category", "garden"), ("query", "pots"), ("query", "x")):
        assert list(memory.listed_by(field, value)) == list(disk.listed_by(field, value))
    assert (memory.number_of("A3"), disk.number_of("A3"), disk.number_of("A9")) == (2, 2, None)


def test_an_opened_catalogue_is_read_by_many_threads_at_once(both):
    memory, disk = both
    failures = []

    def read():
        for _ in range(50):
            if list(disk.search("tea pot", 9)) != list(memory.search("tea pot", 9)) or disk.number_of("A2") != 1:
                failures.append(1)

    threads = [threading.Thread(target=read) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_an_unfinished_or_foreign_index_is_not_opened(official, tmp_path):
    pytest.importorskip("regex")
    pytest.importorskip("nltk")
    from taspo_trl.environments.webshop.disk import DiskCatalogue, build_catalogue, is_built

    folder = tmp_path / "built"
    build_catalogue(official, folder)
    with pytest.raises(ConfigurationError, match="already holds a catalogue"):
        build_catalogue(official, folder)
    (folder / "catalogue.json").write_text('{"format": 0, "identity": "x", "num_products": 3}')
    with pytest.raises(ConfigurationError, match="format 0"):
        DiskCatalogue(folder)
    (folder / "catalogue.json").unlink()
    assert not is_built(folder)
    build_catalogue(official, folder)  # over what an interrupted build left


def test_reading_can_stop_after_the_first_products(official, tmp_path):
    pytest.importorskip("regex")
    pytest.importorskip("nltk")
    from taspo_trl.environments.webshop.disk import DiskCatalogue, build_catalogue

    build_catalogue(official, tmp_path / "few", num_products=2)
    assert len(DiskCatalogue(tmp_path / "few")) == 1  # the second entry repeats the first


def test_products_are_immutable():
    with pytest.raises(AttributeError):
        Product("A", "t", "", (), (1.0,), {}, (), "c", "q", "d").title = "x"
