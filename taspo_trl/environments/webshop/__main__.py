"""Builds the on-disk index of a big catalogue: `python -m taspo_trl.environments.webshop PRODUCTS FOLDER`."""

from __future__ import annotations

import argparse

from .disk import build_catalogue


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m taspo_trl.environments.webshop", description=__doc__)
    parser.add_argument("products", help="an official products file, or the folder that holds it")
    parser.add_argument("folder", help="where the index goes")
    parser.add_argument("--num-products", type=int, help="use only the first entries of the products file")
    arguments = parser.parse_args()
    print(build_catalogue(arguments.products, arguments.folder, arguments.num_products))


if __name__ == "__main__":
    main()
