// QuickFIX/J as a reader of datagrams: what it makes of each, it tells on stdout, a JSON array a line with
// an object for each message. Fields are by tag, values in hexadecimal digits; in the place of a group's
// count stands the list of its entries. Argument: a file of datagrams, each behind its length in four
// bytes, big-endian. Framing is MINA's decoder of QuickFIX/J, fields are its Message's with the
// dictionaries of FIXT 1.1 and FIX 5.0 SP2, checksum and body length are validated.

import java.io.DataInputStream;
import java.io.EOFException;
import java.io.FileInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.mina.core.buffer.IoBuffer;
import org.apache.mina.core.filterchain.IoFilter.NextFilter;
import org.apache.mina.core.session.IoSession;
import org.apache.mina.filter.codec.ProtocolDecoderOutput;
import quickfix.DataDictionary;
import quickfix.Field;
import quickfix.FieldMap;
import quickfix.Group;
import quickfix.Message;
import quickfix.mina.message.FIXMessageDecoder;

public final class Client {
    private final DataDictionary session;
    private final DataDictionary application;

    private Client() throws Exception {
        session = new DataDictionary("FIXT11.xml");
        application = new DataDictionary("FIX50SP2.xml");
    }

    public static void main(String[] arguments) throws Exception {
        Client client = new Client();
        try (DataInputStream input = new DataInputStream(new FileInputStream(arguments[0]))) {
            while (true) {
                byte[] datagram = new byte[length(input)];
                if (datagram.length == 0) {
                    return;
                }
                input.readFully(datagram);
                System.out.println(client.report(datagram));
            }
        }
    }

    /** The next datagram's length; 0 at the end of the file. */
    private static int length(DataInputStream input) throws IOException {
        try {
            return input.readInt();
        } catch (EOFException end) {
            return 0;
        }
    }

    private String report(byte[] datagram) throws Exception {
        List<String> messages = new ArrayList<>();
        for (String text : framed(datagram)) {
            Message message = new Message();
            message.fromString(text, session, application, true);
            Map<Integer, String> found = new TreeMap<>();
            collect(message.getHeader(), found);
            collect(message, found);
            collect(message.getTrailer(), found);
            messages.add(object(found));
        }
        return "[" + String.join(", ", messages) + "]";
    }

    private static List<String> framed(byte[] datagram) throws Exception {
        List<String> found = new ArrayList<>();
        ProtocolDecoderOutput output = new ProtocolDecoderOutput() {
            @Override
            public void write(Object message) {
                found.add((String) message);
            }

            @Override
            public void flush(NextFilter next, IoSession session) {
            }
        };
        IoBuffer buffer = IoBuffer.wrap(datagram);
        new FIXMessageDecoder().decode(null, buffer, output);
        if (buffer.hasRemaining()) {
            found.add("bytes are left over: " + buffer.remaining());
        }
        return found;
    }

    private static void collect(FieldMap map, Map<Integer, String> found) {
        for (Iterator<Field<?>> each = map.iterator(); each.hasNext(); ) {
            Field<?> field = each.next();
            String value = String.valueOf(field.getObject());
            byte[] bytes = value.getBytes(StandardCharsets.ISO_8859_1);
            found.put(field.getTag(), '"' + HexFormat.of().formatHex(bytes) + '"');
        }
        for (Iterator<Integer> each = map.groupKeyIterator(); each.hasNext(); ) {
            int tag = each.next();
            List<String> entries = new ArrayList<>();
            for (Group group : map.getGroups(tag)) {
                Map<Integer, String> entry = new TreeMap<>();
                collect(group, entry);
                entries.add(object(entry));
            }
            found.put(tag, "[" + String.join(", ", entries) + "]");
        }
    }

    private static String object(Map<Integer, String> fields) {
        List<String> members = new ArrayList<>();
        fields.forEach((tag, value) -> members.add("\"" + tag + "\": " + value));
        return "{" + String.join(", ", members) + "}";
    }
}
