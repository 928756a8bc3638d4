"""A tiny shop in WebShop's own file formats, made at run time: a checkout around it holds either
upstream's code (R3L_WEBSHOP names its folder) or the stand-in next to this file."""

import json
import shutil
from pathlib import Path

UTILS = """
from os.path import abspath, dirname, join
BASE_DIR = dirname(abspath(__file__))
DEFAULT_FILE_PATH = join(BASE_DIR, "../data/items_shuffle_1000.json")
DEFAULT_ATTR_PATH = join(BASE_DIR, "../data/items_ins_v2_1000.json")
HUMAN_ATTR_PATH = join(BASE_DIR, "../data/items_human_ins.json")
"""
COLOURS = ("red", "teal", "ivory")
KINDS = {
    "mug": ("kitchen", "garden", ("dishwasher safe", "hand painted"), "Home › Kitchen › Mugs"),
    "scarf": ("wool scarf", "fashion", ("machine wash", "long lasting"), "Clothing › Scarves"),
    "lamp": ("desk lamp", "electronics", ("easy to install", "energy efficient"), "Home › Lamps"),
}
MAKERS = ("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Ginkgo", "Hazel", "Iris", "Juniper",
          "Kapok", "Larch")  # fmt: skip


def checkout(folder: Path, upstream: Path | None = None) -> Path:
    """A checkout in `folder`: the catalogue, and upstream's code or the stand-in."""
    site = folder / "web_agent_site"
    if upstream is None:
        (site / "envs").mkdir(parents=True)
        (site / "utils.py").write_text(UTILS)
        stand_in = Path(__file__).with_name("shop_stand_in.py")
        shutil.copy(stand_in, site / "envs" / "web_agent_text_env.py")
    else:
        shutil.copytree(upstream / "web_agent_site", site)
    write_catalogue(folder / "data")
    return folder


def write_catalogue(folder: Path) -> None:
    """36 products in three kinds, an instruction for each, and two human ones."""
    products, instructions = [], {}
    for number, (kind, maker) in enumerate((k, m) for k in KINDS for m in MAKERS):
        product = _product(f"B{number:09d}", kind, maker, number)
        products.append(product)
        attribute = KINDS[kind][2][number % 2]
        instructions[product["asin"]] = {
            "attributes": [attribute],
            "instruction": f"i want a {attribute} {kind} by {maker.lower()}",
            "instruction_attributes": [attribute],
        }
    written = {
        products[n]["asin"]: [
            {
                "instruction": f"Please find me a red {MAKERS[n].lower()} mug.",
                "instruction_attributes": ["hand painted" if n % 2 else "dishwasher safe"],
                "instruction_options": ["red"],
            }
        ]
        for n in (0, 1)
    }
    folder.mkdir()
    for name, values in {
        "items_shuffle_1000": products,
        "items_ins_v2_1000": instructions,
        "items_human_ins": written,
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(values))


def _product(asin: str, kind: str, maker: str, number: int) -> dict[str, object]:
    query, category, attributes, shelf = KINDS[kind]
    options = {"color": [{"value": c, "image": None} for c in COLOURS]}
    if kind == "scarf":
        options["Size"] = [{"value": size, "image": None} for size in ("Short [1 m]", "Long")]
    return {
        "asin": asin,
        "category": category,
        "query": query,
        "product_category": shelf,
        "name": f"{maker} {kind}, {attributes[number % 2]}",
        "full_description": f"A {kind} that {maker} makes in their own workshop.",
        "small_description": [f"{attributes[number % 2]} {kind}", "comes in a box"],
        # a range, of which upstream draws the price
        "pricing": f"${10 + number}.00$" + f"{30 + number}.50"
        if number % 3
        else f"${12 + number}.99",
        "customization_options": options,
        "images": ["none.jpg"],
    }
