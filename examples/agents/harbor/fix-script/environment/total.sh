# Prints the sum of the numbers in a file.
total=0
while read -r number; do
    total=$number
done < "$1"
echo "$total"
