"""Chat templates for tests, one for each family of habits that templates have."""

from __future__ import annotations

PLAIN = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are helpful.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

BOS = """{{ bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) and message.role != 'system' %}
        {{- raise_exception('Roles must alternate: ' ~ message.role) }}
    {%- endif %}
    {%- set role = {'assistant': 'model', 'user': 'human'}.get(message.role, message['role']) %}
    {{- '<turn>' ~ role ~ '\\n' ~ message['content'] | trim ~ eos_token ~ '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<turn>model\\n' }}{% endif %}"""

TOOLS = """{%- macro describe(spec, depth=0) -%}
    {%- for name, value in spec.items() %}
{{ '  ' * depth }}- {{ name }}{{ ': ' + value if value is string else '' }}
        {%- if value is mapping %}{{ describe(value, depth + 1) }}{% endif %}
    {%- endfor %}
{%- endmacro -%}
{%- set ns = namespace(last_user=-1, calls=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last_user = loop.index0 %}{% endif %}
{%- endfor %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- tool.function.parameters | tojson(indent=2) }}
        {{- describe(tool.function) }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages if message.role != 'system' or not tools %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' %}
        {%- set reasoning = message.reasoning_content or '' %}
        {%- if not reasoning and '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {% generation %}
        {%- if reasoning and loop.index0 >= ns.last_user %}{{ '<think>\\n' ~ reasoning ~ '\\n</think>\\n' }}{% endif %}
        {{- content }}
        {%- for call in message.tool_calls %}
            {%- set ns.calls = ns.calls + 1 %}
            {{- '\\n<tool_call>' }}{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
            {%- for key, value in call.function.arguments | dictsort %}
                {{- ' ' ~ key ~ '=' ~ (value if value is string else value | tojson) }}
            {%- endfor %}
            {{- '</tool_call>' }}
        {%- endfor %}
        {% endgeneration %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>tool ' ~ message.tool_call_id ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ (' ' ~ message.name if message.name is defined else '') ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{{- messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{- ' %s/%d' | format('calls', ns.calls) }} {{ messages[::-1][0].role | upper }} {{ 'a-b'.replace('-', '+') }}
{%- if add_generation_prompt %}
    {{- '\\n<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
