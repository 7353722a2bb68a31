from target import Attack
ATTACKS: tuple[Attack, ...] = ()
