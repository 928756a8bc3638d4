"""The store on disk: LMDB tables, rows, checksums, and transactions with typed reads and writes."""
