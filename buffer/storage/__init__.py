"""The store on disk: LMDB tables, rows, checksums, and one transaction's typed view of them."""
