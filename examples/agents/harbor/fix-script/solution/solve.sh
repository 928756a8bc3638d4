#!/bin/sh
sed -i 's/total=$number/total=$((total + number))/' /app/total.sh
