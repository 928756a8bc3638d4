#!/bin/sh
awk '$2 == "ERROR" {n[$3]++}
     END {for (s in n) {printf "%s\"%s\": %d", (c++ ? ", " : "{"), s, n[s]}; print "}"}' \
    /app/server.log > /app/errors.json
