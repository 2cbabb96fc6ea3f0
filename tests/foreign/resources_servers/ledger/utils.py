from decimal import Decimal


def as_money(text: str) -> Decimal:
    return Decimal(text.replace("$", ""))
