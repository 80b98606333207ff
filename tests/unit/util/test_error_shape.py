import time
import uuid

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ledger_group import Group

from spark_mq.util.error_shape import MAX_SHAPE, error_shape, error_shapes

SHAPES = {
    "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: "
    "https://api.example.com/v1/orders/4711?page=2": (
        "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: <url>"
    ),
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 12.0 "
    "failed 4 times, most recent failure: Lost task 3.3 in stage 12.0 (TID 57) "
    "(10.0.0.7 executor 2)": (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task <n> in stage <n> "
        "failed <n> times, most recent failure: Lost task <n> in stage <n> (TID <n>) (<n> executor "
        "<n>)"
    ),
    '[CAST_INVALID_INPUT] The value \'abc\' of the type "STRING" cannot be cast to "INT" because '
    "it is malformed. SQLSTATE: 22018": (
        "[CAST_INVALID_INPUT] The value <text> of the type <text> cannot be cast to <text> because "
        "it is malformed. SQLSTATE: 22018"
    ),
    'psycopg.errors.UniqueViolation: duplicate key value violates unique constraint "orders_pkey"\n'
    "DETAIL:  Key (order_id, line)=(4711, 2) already exists.": (
        "psycopg.errors.UniqueViolation: duplicate key value violates unique constraint <text> "
        "DETAIL: Key (order_id, line)=(<n>, …) already exists."
    ),
    "java.sql.SQLException: Access denied for user 'app'@'10.0.0.7' (using password: YES)": (
        "java.sql.SQLException: Access denied for user <text>@<text> (using password: YES)"
    ),
    "com.mysql.cj.jdbc.exceptions.CommunicationsException: cannot reach "
    "jdbc:mysql://db-3.internal:3306/shop?useSSL=true within 1,500 ms": (
        "com.mysql.cj.jdbc.exceptions.CommunicationsException: cannot reach <url> within <n> ms"
    ),
    "ORA-00001: unique constraint (SHOP.ORDERS_PK) violated": (
        "ORA-00001: unique constraint (SHOP.ORDERS_PK) violated"
    ),
    "LookupError: no customer 9f8e7d6c-1111-4222-8333-abcdefabcdef since 2026-03-01T12:00:00Z": (
        "LookupError: no customer <uuid> since <date>"
    ),
    "TypeError: <Order object at 0x7f3a9c1b2d30> is not paid": (
        "TypeError: <Order object at <hex>> is not paid"
    ),
    "PermissionError: cannot open /mnt/lake/2026/03/part-00017.parquet": (
        "PermissionError: cannot open <path>"
    ),
    "OSError: cannot open C:\\data\\orders\\4711.csv": "OSError: cannot open <path>",
    "MailError: anna.b+shop@mail.example.com bounced at 12:30:05": (
        "MailError: <email> bounced at <date>"
    ),
    "java.lang.IllegalStateException: com.example.Order@1b6d3586 was closed": (
        "java.lang.IllegalStateException: com.example.Order<hex> was closed"
    ),
    "GitError: unknown revision 3f2504e04f8911d39a0c0305e82c3301": (
        "GitError: unknown revision <hex>"
    ),
    "ValueError: ids 1, 2, 3, 4 are unknown": "ValueError: ids <n>, … are unknown",
    "TypeError: unsupported operand type(s) for //=: 'str' and 'int'": (
        "TypeError: unsupported operand type(s) for //=: <text> and <text>"
    ),
    "OSError: cannot open //server/share": "OSError: cannot open <path>",
    "ValueError: lease 12 of flat 7 expired": "ValueError: lease <n> of flat <n> expired",
}


CODES = [
    "HTTP 503", "HTTP/1.1 502 Bad Gateway", "urllib.error.HTTPError: HTTP Error 400: Bad Request",
    "status 404", "status code: 429", "StatusCode=403", "Request failed with status code 500",
    "httpx.HTTPStatusError: Server error '503 Service Unavailable'",
    "fastapi.exceptions.HTTPException: 404: Not Found", "<Response [503]>", "429 Too Many Requests",
    "Server returned HTTP response code: 503", "the server returned 500", "it responded with 502",
    "google.api_core.exceptions.NotFound: 404 POST", "too many 503 error responses",
    "An error occurred (503) when calling PutObject", "[Errno 111] Connection refused",
    "[WinError 10061] No connection", "returned non-zero exit status 137.", "exit code: 1",
    "raised SystemExit: 3",
    "the job exited with code 143", "killed by signal 9", "error code: 0x80070005",
    "SQLSTATE[HY000]", "SQLCODE=-803, SQLSTATE=23505", "ERROR 1205 (HY000): Lock wait timeout",
    "TNS-12541: no listener", "grpc_status:14", "status = StatusCode.UNAVAILABLE",
]  # fmt: skip


@pytest.mark.parametrize("text", CODES)
def test_a_number_that_is_the_cause_stays(text):
    shape = error_shape(f"{text}, order 4711")
    assert shape == f"{text}, order <n>"
    assert error_shapes(
        pa.array([f"{text}, order {n}" for n in range(9)])
    ).unique().to_pylist() == [shape]


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("aiohttp.ClientResponseError: 503, message='Slow'",
         "aiohttp.ClientResponseError: 503, message=<text>"),
        ("{'status': 503, 'id': 17}", "{'status': 503, <text>: <n>}"),
        ('{"status_code":429,"id":4711}', '{"status_code":429,<text>:<n>}'),
        ("pymysql.err.OperationalError: (1205, 'Lock wait')",
         "pymysql.err.OperationalError: (1205, <text>)"),
        ("the server returned 500 for order 17", "the server returned 500 for order <n>"),
    ],
)  # fmt: skip
def test_a_code_stays_beside_what_is_quoted(text, shape):
    assert error_shape(text) == shape


@pytest.mark.parametrize(
    "text",
    ["order 503 is unknown", "503 orders are late", "order status 17", "status 4711 is unknown",
     "the query returned 500 rows", "it returned 117 items", "price 404.50 is negative",
     "line 503, column 404", "response time 503 ms", "area code 415 is unknown",
     "ID-00017 is late"],
)  # fmt: skip
def test_a_number_of_the_data_is_replaced(text):
    shape = error_shape(text)
    assert "<n>" in shape
    assert not any(letter.isdigit() for letter in shape)


@pytest.mark.parametrize("text", SHAPES)
def test_the_shape_of_a_real_error_keeps_its_class_and_its_words(text):
    assert error_shape(text) == SHAPES[text]


def test_errors_of_one_cause_have_one_shape_and_others_have_theirs():
    amounts = {error_shape(f"ValueError: amount {n / 7} of '{n}' is bad") for n in range(1_000)}
    assert amounts == {"ValueError: amount <n> of <text> is bad"}
    assert error_shape("KeyError: 'amount'") != error_shape("TypeError: 'amount'")
    assert error_shape("utf8 error") != error_shape("utf16 error"), "a number inside a word stays"


def test_an_apostrophe_does_not_hide_the_words_after_it():
    assert error_shape("it can't read 'a' and won't try 'b'") == (
        "it can't read <text> and won't try <text>"
    )


WORKERS = ["billing-6d4cf56db8-x2x4k", "billing-6d4cf56db8-qqwpz", "it's mine", "w 1/a", "worker-2"]


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("lease", ["4d" * 16, f"{uuid.UUID(int=1)}/7/0123456789ab"])
def test_expired_leases_have_one_shape_for_all_workers(worker, lease):
    group = Group(messages=1)
    group.lease(lease, worker=worker)
    group.expire()
    error = group.at(0).error
    assert worker in error
    assert error_shape(error) == "lease of <worker> expired"
    warned = error_shape(f"{error}. The sink /a may")
    assert warned == "lease of <worker> expired. The sink <path> may"


@given(st.text(max_size=3_000))
def test_a_shape_is_one_short_line(text):
    shape = error_shape(text)
    assert len(shape) <= MAX_SHAPE
    assert len(shape.splitlines()) <= 1


@pytest.mark.parametrize(
    "part",
    ["'", '"', "\\'", "a@", "0", "0a", "a.", "/", "1,", "x'y", "://", "-/", "status ", "HTTP",
     "error_", "503 ", "returned "],
)  # fmt: skip
def test_no_text_is_slow(part):
    started = time.process_time()
    error_shape(part * 100_000)
    assert time.process_time() - started < 0.2


PIECES = [
    *("HTTP Error ", "status", "code", "returned ", "errno ", "sqlstate ", "Error: (", "ORA-"),
    *("503", "404 Not Found", " with ", "exit ", f"lease {'0b' * 16} of ", " expired"),
    *"0123456789afxXzE_-+.,:/'\"`@~ \\(<é\n\u017f",
    *("://", "jdbc:", "12:30:05", "2024-01-02", "0x"),
]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=30).map("".join)))
def test_a_column_has_the_shapes_of_its_texts(texts):
    """Texts that differ in digits alone are looked at once."""
    assert error_shapes(pa.array(texts, pa.string())).to_pylist() == [
        error_shape(one) for one in texts
    ]
