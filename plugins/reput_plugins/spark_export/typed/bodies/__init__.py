"""The formats of bodies: each decodes many bodies into the columns of a table, and says which do not fit."""
