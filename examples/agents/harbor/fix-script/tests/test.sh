#!/bin/sh
# Tries the script with three files. A wrong sum is a reward of 0.
reward=1
try() {
    printf "$1" > /tmp/numbers
    said=$(sh /app/total.sh /tmp/numbers 2>&1)
    echo "sum of '$1': '$said', should be $2"
    [ "$said" = "$2" ] || reward=0
}
try '3\n14\n15\n' 32
try '' 0
try '7\n-9\n' -2
echo "$reward" > /logs/verifier/reward.txt
