"""Whose memories and whose documents a run may see. Two subjects are never combined: what a run says of its own takes
the place of all that was configured, also where it says less."""

from contracts.context import ExecutionContext
from contracts.records import Record


class MemoryScope(Record):
    """Whose memories are meant. None is no part of the scope."""

    tenant_id: str | None = None
    user_id: str | None = None
    application_id: str | None = None
    conversation_id: str | None = None
    agent_id: str | None = None


class KnowledgeAccess(Record):
    """In whose name documents are searched."""

    tenant_id: str | None = None
    user_id: str | None = None


def memory_scope(context: ExecutionContext, configured: MemoryScope) -> MemoryScope:
    """The context's scope, if it names any part of one, else the configured one."""
    own = MemoryScope(
        tenant_id=context.tenant_id or None,
        user_id=context.user_id or None,
        application_id=context.application_id or None,
        conversation_id=context.conversation_id or None,
        agent_id=context.agent_id or None,
    )
    return configured if own == MemoryScope() else own


def knowledge_access(context: ExecutionContext, configured: KnowledgeAccess) -> KnowledgeAccess:
    """The context's tenant and user, if it names one of them, else the configured ones."""
    own = KnowledgeAccess(tenant_id=context.tenant_id or None, user_id=context.user_id or None)
    return configured if own == KnowledgeAccess() else own
