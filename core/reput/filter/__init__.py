"""Which messages a consumer wants: tags, SQL92 expressions, and the bit maps that remember the answers."""
