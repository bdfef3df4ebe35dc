"""Types of FIX fields' values, as plain numbers: what the index can check of a value.

Source: FIX 5.0 SP2, volume 1, "Data types".
"""

#: Any value that is not empty.
STRING = 0
#: One character.
CHAR = 1
#: Characters with spaces between.
MULTIPLE_CHAR = 2
#: A whole number, with or without a minus sign.
INT = 3
#: A whole number of 0 or more: lengths, sequence numbers.
NUMBER = 4
#: How many entries a repeating group has.
GROUP_COUNT = 5
#: Digits with at most one point among them, with or without a minus sign.
DECIMAL = 6
#: Y or N.
BOOLEAN = 7
#: Bytes whose number the field before gives.
DATA = 8
#: YYYYMMDD-HH:MM:SS, with decimals of a second or without.
TIMESTAMP = 9
#: YYYYMMDD.
DATE = 10
#: HH:MM:SS, with decimals of a second or without.
TIME = 11
#: YYYYMM, YYYYMMDD or YYYYMMwN.
MONTH_YEAR = 12
#: Three capital letters.
CURRENCY = 13
#: Two capital letters.
COUNTRY = 14
