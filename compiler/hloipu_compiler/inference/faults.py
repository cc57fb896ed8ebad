"""The error of shape inference, and the list of its codes: one code per class of rule.

A rule knows shapes and attributes but no text, so it points at an operand by number or at an
attribute by name; the verifier turns that into a span.
"""

from typing import ClassVar

from hloipu_runtime.errors import HloipuError


class ShapeFault(HloipuError):
    """An instruction's operands, attributes or declared shape break a rule of its opcode."""

    exit_code: ClassVar[int] = 3

    def __init__(
        self,
        code: str,
        message: str,
        expected: str,
        operand: int | None,
        attribute: str | None,
        hint: str,
    ) -> None:
        super().__init__(code, message, hint=hint)
        self.expected = expected
        self.operand = operand
        """Number of the operand to point at, or None."""
        self.attribute = attribute
        """Name of the attribute to point at, or None."""


class FaultCode(str):
    """A code of this list; called with what is wrong, it makes the error to raise."""

    __slots__ = ()

    def __call__(
        self,
        message: str,
        *,
        expected: str = "",
        operand: int | None = None,
        attribute: str | None = None,
        hint: str = "",
    ) -> ShapeFault:
        """Return the error to raise."""
        return ShapeFault(str(self), message, expected, operand, attribute, hint)


OPERAND_KIND = FaultCode("E0201")
"""An array, a tuple or a token was needed and something else was given."""
ELEMENT_TYPE = FaultCode("E0202")
"""The operation is not defined on that element type."""
ELEMENT_TYPES_DIFFER = FaultCode("E0203")
"""Element types that must be equal are not, beyond precision."""
MIXED_PRECISION = FaultCode("E0204")
"""Floating-point operands of different formats meet in an operation that forbids it."""
IMPLICIT_BROADCAST = FaultCode("E0205")
"""Operands of an elementwise operation differ in sizes."""
COMPARISON_TYPE = FaultCode("E0206")
"""`type=` of a comparison does not fit the operands."""
DIMENSION_RANGE = FaultCode("E0207")
"""A dimension number is negative or not below the rank."""
DIMENSION_ORDER = FaultCode("E0208")
"""Dimension numbers repeat, are not sorted, or are not a permutation."""
DIMENSION_COUNT = FaultCode("E0209")
"""There are too many or too few dimension numbers, sizes or ranges for the rank."""
SIZE_MISMATCH = FaultCode("E0210")
"""Sizes or ranks that must be equal are not."""
ELEMENT_COUNT = FaultCode("E0211")
"""The number of elements or bytes changes where it must not."""
OUT_OF_BOUNDS = FaultCode("E0212")
"""A range, a slice size or a count goes beyond the operand."""
WINDOW = FaultCode("E0213")
"""A window does not fit its operand or is not positive."""
REDUCER = FaultCode("E0214")
"""A computation applied to elements has the wrong signature."""
CALLEE = FaultCode("E0215")
"""A called computation's parameters or result do not fit the call."""
ATTRIBUTE_VALUE = FaultCode("E0216")
"""An attribute's value is outside of what the operation allows."""
DECLARED_STRUCTURE = FaultCode("E0217")
"""The declared result shape has the wrong structure for the operation."""
INDEX_OPERAND = FaultCode("E0218")
"""Start indices have the wrong type, rank or number."""
TOKEN_EXPECTED = FaultCode("E0219")
"""An operand that orders side effects is not a token."""
OPERAND_NUMBER = FaultCode("E0220")
"""The number of operands does not fit the operation."""
ALIASING = FaultCode("E0221")
"""`output_to_operand_aliasing` names a place that does not exist or has another shape."""
GROUP_SIZE = FaultCode("E0222")
"""A collective's result does not fit the size of its groups."""
SHAPE_OVERFLOW = FaultCode("E0223")
"""A shape has more bytes than 63 bits can count."""
NOT_INFERABLE = FaultCode("E0224")
"""The result shape cannot be inferred and must be written."""
DYNAMIC_SIZE = FaultCode("E0225")
"""A dimension of unknown size stands where the operation cannot take one."""
