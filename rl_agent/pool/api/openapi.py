"""Describes the service at `GET /openapi.json` from the models that its handlers read and answer.

A handler says with `@described` which models its body, query and answer are; the same models check them. The
handler's docstring is the summary.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rl_agent.pool.schemas import ErrorBody

H = TypeVar("H", bound=Callable[..., Any])
_REF = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Description:
    body: type[BaseModel] | None
    query: type[BaseModel] | None
    status: int
    answer: type[BaseModel] | None
    content: str


def described(
    *,
    body: type[BaseModel] | None = None,
    query: type[BaseModel] | None = None,
    status: int = 200,
    answer: type[BaseModel] | None = None,
    content: str = "application/json",
) -> Callable[[H], H]:
    """Mark a handler as part of the public interface."""

    def mark(handler: H) -> H:
        handler.described = Description(body, query, status, answer, content)  # type: ignore[attr-defined]
        return handler

    return mark


def openapi_of(routes: Iterable[web.RouteDef]) -> dict[str, Any]:
    """OpenAPI 3.1 of all described handlers."""
    found = [(route, route.handler.described) for route in routes if hasattr(route.handler, "described")]
    models = {ErrorBody}
    for _, one in found:
        models |= {model for model in (one.body, one.query, one.answer) if model is not None}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, schemas = models_json_schema([(model, "validation") for model in ordered], ref_template=_REF)
    paths: dict[str, Any] = {}
    for route, one in found:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, one, schemas["$defs"])
    return {
        "openapi": "3.1.0",
        "info": {"title": "Rollout pool", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(route: web.RouteDef, one: Description, schemas: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "done"}
    answer["content"] = {one.content: {"schema": _ref(one.answer) if one.answer is not None else {}}}
    failure = {"description": "why not", "content": {"application/json": {"schema": _ref(ErrorBody)}}}
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": (route.handler.__doc__ or route.handler.__name__).strip().splitlines()[0],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in re.findall(r"\{(\w+)\}", route.path)
        ],
        "responses": {str(one.status): answer, "4XX": failure, "5XX": failure},
    }
    if one.query is not None:
        properties = schemas[one.query.__name__]["properties"]
        operation["parameters"] += [
            {"name": name, "in": "query", "schema": schema} for name, schema in properties.items()
        ]
    if one.body is not None:
        content = {"application/json": {"schema": _ref(one.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
