"""The automatic recipe: builds any model of a release tiny, by itself, where no recipe is shipped.

It asks the release and never the descriptor, so that a wrong descriptor cannot make its own proof. In the order of use:
`configuration` finds the model's configuration class and its values, and `shrink` makes them small. The model is made
as every recipe's (`scaffold.verify.numeric.host`). `processor` makes the model's own processor without a hub, and
`inputs` runs it. `survey` finds out which sizes tell a right port from a wrong one. `recipe` offers all this as a
`Recipe`.

Everything here runs in a process of its own (`scaffold.verify.numeric.child`), and patches the release freely.
"""
